//! The shield (`signalbox_common::shield`): its maps. The programs of layer-4 services run the shield.

pub mod maps;
