//! Returns the flow table entries and source ports of removed flows to their workers.

use std::net::SocketAddr;

use signalbox_common::cut::flow::CutFlow;
use signalbox_core::availability::ha::floating::FloatingSources;

use super::FlowGc;
use crate::datapath::cut::{PortPool, PortShare, entries_per_worker};
use crate::datapath::worker::WorkerCommand;
use crate::kernel::address::from_words;

/// Source port of leg B, and the pool that it comes from.
pub(super) type PlacedPort = (PortPool, u16);

pub(super) fn port_of(flow: &CutFlow, floating: &FloatingSources) -> PlacedPort {
    let source = from_words(flow.local);
    let pool = PortPool {
        source,
        is_floating: floating.moves(source),
        host: SocketAddr::new(from_words(flow.host_addr), (flow.ports_b >> 16) as u16),
    };
    (pool, flow.ports_b as u16)
}

impl FlowGc {
    pub(super) fn return_entries(&self, gone: Vec<(u32, PlacedPort)>) {
        let share = entries_per_worker(self.cut.table.worker_len(), self.workers.len());
        let mut by_worker: Vec<Vec<_>> = vec![Vec::new(); self.workers.len()];
        for (index, _) in gone.iter().filter(|(index, _)| !self.cut.table.is_of_programs(*index)) {
            if let Some(list) = by_worker.get_mut((index / share) as usize) {
                list.push(*index);
            }
        }
        for (worker, entries) in self.workers.iter().zip(by_worker) {
            if !entries.is_empty() {
                worker.send(WorkerCommand::Release(entries, Vec::new()));
            }
        }
        // Ports of programs belong to no worker: each is taken when it is free. A flow of an earlier process may have a
        // program's entry and a worker's port.
        let programs = self.program_ports.load();
        let is_of_programs = |(index, (_, port)): &(u32, PlacedPort)| {
            let has = programs.as_ref().as_ref().is_some_and(|ports| ports.contains(port));
            has && self.cut.table.is_of_programs(*index)
        };
        let of_workers = gone.into_iter().filter(|gone| !is_of_programs(gone));
        self.return_ports(of_workers.map(|(_, place)| place));
    }

    /// Gives source ports back to their workers.
    pub(super) fn return_ports(&self, ports: impl Iterator<Item = PlacedPort>) {
        for (worker, ports) in self.workers.iter().zip(self.ports_by_worker(ports)) {
            if !ports.is_empty() {
                worker.send(WorkerCommand::Release(Vec::new(), ports));
            }
        }
    }

    /// Sorts source ports by the workers that they belong to. Those of other nodes are left out.
    pub(super) fn ports_by_worker(&self, ports: impl Iterator<Item = PlacedPort>) -> Vec<Vec<PlacedPort>> {
        let mut divided: Vec<Vec<_>> = vec![Vec::new(); self.workers.len()];
        for placed in ports.filter(|placed| self.is_our_port(placed)) {
            let worker = PortShare::worker_of(placed.1, self.workers.len(), self.shared.node);
            if let Some(list) = divided.get_mut(worker) {
                list.push(placed);
            }
        }
        divided
    }

    /// Whether this node's workers hand out a source port.
    pub(super) fn is_our_port(&self, (pool, port): &PlacedPort) -> bool {
        !pool.is_floating || self.shared.node.has_port(*port)
    }

    pub(super) fn port_of(&self, flow: &CutFlow) -> PlacedPort {
        port_of(flow, &self.shared.snapshot.load().floating)
    }
}
