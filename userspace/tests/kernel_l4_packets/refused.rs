use crate::packet::*;
use crate::world::*;
#[test]
fn speed() {
    with_each(|world| {
        world.serve_all();
        for (c, v) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            if c == CLIENT {
                world.connect(c, v);
            }
            let mut data = Packet::tcp(FROM_CLIENT, c, v, ACK);
            data.ack = 7001;
            data.hops = 255;
            // test_run keeps the changed packet: repeat only measures the first as hit
            let (_, t) = world.repeat(&data.bytes(), 1);
            eprintln!("{:?} {c} once {t:?}", world.program);
        }
        let miss = Packet::tcp(FROM_CLIENT, "192.0.2.3:4", "192.0.2.4:5", ACK);
        for _ in 0..3 {
            let (o, t) = world.repeat(&miss.bytes(), 1_000_000);
            eprintln!("{:?} miss {t:?} {:?}", world.program, o.reasons);
        }
        world.serve("10.0.0.9:3306", TCP, signalbox_common::l4::mode::DSR_L2);
        let l2 = Packet::tcp(FROM_CLIENT, CLIENT, "10.0.0.9:3306", ACK);
        for _ in 0..3 {
            let (o, t) = world.repeat(&l2.bytes(), 1_000_000);
            eprintln!("{:?} l2 {t:?} {:?}", world.program, o.reasons);
        }
    });
}
