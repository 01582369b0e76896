//! Messages of an object's programs, as our log gets them.

use std::sync::Mutex;

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};

/// Messages of the programs of one object.
pub(crate) struct ProgramMessages {
    logger: EbpfLogger<&'static RecordedLog>,
    log: &'static RecordedLog,
}

impl ProgramMessages {
    pub(crate) fn of(ebpf: &mut Ebpf) -> Self {
        let log: &'static RecordedLog = Box::leak(Box::default());
        Self {
            logger: EbpfLogger::init_with_logger(ebpf, log).unwrap(),
            log,
        }
    }

    /// Takes the messages since the last call.
    pub(crate) fn take(&mut self) -> Vec<(Level, String)> {
        self.logger.flush();
        std::mem::take(&mut *self.log.0.lock().unwrap())
    }
}

#[derive(Default)]
struct RecordedLog(Mutex<Vec<(Level, String)>>);

impl Log for RecordedLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}
