//! The shield with real connections: floods, lists, limits, and the part that stays while signalbox is dead.

mod flood;
mod life;
mod limits;
mod lists;
mod new_interface;
mod put_back;
mod scene;
mod verdicts;
mod ways_in;
