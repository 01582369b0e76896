//! Virtual services of IPVS as `/proc/net/ip_vs` shows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reads the services of TCP. Those of packets with a mark concern none of ours.
#[must_use]
pub fn virtual_services(text: &str) -> Vec<SocketAddr> {
    let service = |line: &str| {
        let address = line.strip_prefix("TCP")?.split_whitespace().next()?;
        let (address, port) = address.rsplit_once(':')?;
        let address: IpAddr = match address.strip_prefix('[') {
            Some(v6) => v6.strip_suffix(']')?.parse().ok()?,
            None => Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?).into(),
        };
        Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
    };
    text.lines().filter_map(service).collect()
}

#[cfg(test)]
mod tests {
    use super::virtual_services;

    #[test]
    fn services_of_tcp_are_read() {
        let text = "IP Virtual Server version 1.2.1 (size=4096)\n\
                    Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
                    TCP  0A010001:01BB rr  \n  -> 0A020001:01BB      Masq    1      0          0         \n\
                    UDP  0A010001:0035 rr  \n\
                    TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 wlc persistent 10800\n\
                    FWM  00000001 rr\n";
        let expected = ["10.1.0.1:443".parse().unwrap(), "[fd00::1]:80".parse().unwrap()];
        assert_eq!(virtual_services(text), expected);
    }
}
