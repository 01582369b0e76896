//! Runs the programs on given packets, attached to nothing, for benchmarks (BPF_PROG_TEST_RUN).

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use signalbox_common::l4::{Host, L4Config, L4Flow, Service};
use signalbox_common::net::target::PortBit;
use signalbox_common::net::{Key, Target};
use signalbox_common::shield::Guard;

use super::new_table;
use super::shield::Shield;
use crate::attach::attach_error;
use crate::error::KernelError;
use crate::map::MapFd;
use crate::map_in_map::TABLE_BYTES;
use crate::object::{LAYER4, map_fd, program};
use crate::pins::temporary::TemporaryPins;

/// Program to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestProgram {
    Xdp,
    Tc,
    /// Program `bare_tx` of object `testing`: sends every packet back, and does nothing else.
    Bare,
}

impl TestProgram {
    const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "l4_xdp",
            Self::Tc => "l4_tc",
            Self::Bare => "bare_tx",
        }
    }
}

/// Programs and maps of services, for test runs.
pub struct ProgramTester {
    ebpf: Ebpf,
    /// Object `testing`.
    testing: Ebpf,
    pub established: MapFd,
    pub services: MapFd,
    pub hosts: MapFd,
    pub sources: MapFd,
    pub config: MapFd,
    tables: MapFd,
    port_bitmap: MapFd,
    pub shield: Shield,
}

impl ProgramTester {
    /// Loads the programs for `flows` flows, and those of object `testing`, which is not embedded.
    pub fn load(flows: u32, testing: &[u8]) -> Result<Self, KernelError> {
        let io = |what: &'static str| move |source| KernelError::Io { what, source };
        let pins = TemporaryPins::for_test_run().map_err(io("making the maps of tables"))?;
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("L4_CT_ESTABLISHED", flows.saturating_mul(2));
        loader.map_max_entries("SHIELD_SHARED_PREFIXES", 2 << 21);
        pins.set_pins(&mut loader);
        let mut ebpf = loader.load(LAYER4).map_err(|e| KernelError::Load(Box::new(e)))?;
        program::<Xdp>(&mut ebpf, "l4_xdp")?
            .load()
            .map_err(attach_error("l4_xdp"))?;
        program::<SchedClassifier>(&mut ebpf, "l4_tc")?
            .load()
            .map_err(attach_error("l4_tc"))?;
        let mut testing = Ebpf::load(testing).map_err(|e| KernelError::Load(Box::new(e)))?;
        program::<Xdp>(&mut testing, "bare_tx")?
            .load()
            .map_err(attach_error("bare_tx"))?;
        Ok(Self {
            testing,
            shield: Shield::of(&mut ebpf)?,
            established: map_fd(&ebpf, "L4_CT_ESTABLISHED")?,
            services: map_fd(&ebpf, "L4_SERVICES")?,
            hosts: map_fd(&ebpf, "L4_HOSTS")?,
            sources: map_fd(&ebpf, "L4_NAT_SOURCES")?,
            config: map_fd(&ebpf, "L4_CONFIG")?,
            tables: map_fd(&ebpf, "L4_TABLES")?,
            port_bitmap: map_fd(&ebpf, "L4_PORT_BITMAP")?,
            ebpf,
        })
    }

    /// Serves a target from one host, which has every slot of the table.
    pub fn serve(&self, target: &Target, service: &Service, host: &Host, config: &L4Config) -> std::io::Result<()> {
        self.hosts.update(&0u32, host)?;
        self.config.update(&0u32, config)?;
        self.swap_table(&[0; TABLE_BYTES])?;
        self.services.update(target, service)
    }

    /// Marks a TCP port as wanted, so that its packets are examined.
    pub fn open_port(&self, port: u16) -> std::io::Result<()> {
        let at = PortBit::new(port, 6);
        let before = self.port_bitmap.get::<u32, u64>(&at.word)?.unwrap_or_default();
        self.port_bitmap.update(&at.word, &(before | 1 << at.bit))
    }

    /// Puts a TCP port at an address under a guard.
    pub fn guard(&self, number: u32, target: &Target, guard: &Guard) -> std::io::Result<()> {
        let at = PortBit::new((target.port_protocol >> 16) as u16, target.port_protocol as u8);
        self.shield.set_guard(number, guard)?;
        self.shield.set_target(target, Some(number))?;
        self.shield
            .set_ports(at.word, self.shield.ports(at.word)? | 1 << at.bit)
    }

    /// Replaces the table.
    pub fn swap_table(&self, slots: &[u8]) -> std::io::Result<()> {
        let table = new_table(slots)?;
        self.tables.update(&0u32, &(table.as_raw_fd() as u32))
    }

    /// Adds a flow's direction to the established ones.
    pub fn add_established(&self, key: &Key, flow: &L4Flow) -> std::io::Result<()> {
        self.established.update(key, flow)
    }

    /// Runs a program `times` times on the same bytes; each run sees the changes of the one before. Returns the last
    /// return value, the packet after that run, and the time of one run.
    pub fn run(
        &mut self,
        which: TestProgram,
        bytes: &[u8],
        times: u32,
    ) -> Result<(u32, Vec<u8>, Duration), KernelError> {
        let mut after = vec![0; bytes.len() + 256];
        let options = TestRunOptions {
            data_in: Some(bytes),
            data_out: Some(&mut after),
            repeat: times,
            ..TestRunOptions::default()
        };
        let name = which.name();
        let run = match which {
            TestProgram::Xdp => program::<Xdp>(&mut self.ebpf, name)?.test_run(options),
            TestProgram::Bare => program::<Xdp>(&mut self.testing, name)?.test_run(options),
            TestProgram::Tc => program::<SchedClassifier>(&mut self.ebpf, name)?.test_run(options),
        };
        let run = run.map_err(attach_error(name))?;
        after.truncate(run.data_size_out as usize);
        Ok((run.return_value, after, run.duration))
    }
}
