//! Ranges of virtual addresses in the grammar of OpenShift's `--virtual-ips`: `10.1.1.5-8,42.42.42.42,fd00::5-8`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most addresses that a text may mean, so that `fd00::-ffff` is a mistake rather than 65536 addresses.
pub const MAX_VIPS: usize = 1024;

/// Parses addresses and ranges with commas between them, in their order.
pub fn parse(text: &str) -> Result<Vec<IpAddr>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        all.extend(parse_range(part.trim())?);
        if all.len() > MAX_VIPS {
            return Err(format!("`{text}` has more than {MAX_VIPS} addresses"));
        }
    }
    Ok(all)
}

/// Parses an address, or a range `FIRST-LAST` where `LAST` is a last part, decimal of IPv4 and hexadecimal of IPv6, or
/// a whole address that differs only there.
fn parse_range(text: &str) -> Result<Vec<IpAddr>, String> {
    let Some((first_text, last_text)) = text.split_once('-') else {
        return Ok(vec![parse_address(text)?]);
    };
    if last_text.contains('-') {
        return Err(format!("invalid IP range `{text}`: write one `-` at most"));
    }
    let first = parse_address(first_text)?;
    let (start, end) = match first {
        IpAddr::V4(first) => (
            u16::from(first.octets()[3]),
            last_part(last_text, 10).filter(|end| *end <= 255),
        ),
        IpAddr::V6(first) => (first.segments()[7], last_part(last_text, 16)),
    };
    let end = match end {
        Some(end) => end,
        None => whole_end(first, last_text).ok_or_else(|| {
            format!(
                "invalid IP range `{text}`: after `-` write the last part of an address, as in 10.1.1.5-8 or fd00::5-8"
            )
        })?,
    };
    if start > end {
        return Err(format!("invalid IP range `{text}`: start={start} > end={end}"));
    }
    if usize::from(end - start) >= MAX_VIPS {
        return Err(format!(
            "invalid IP range `{text}`: it has more than {MAX_VIPS} addresses"
        ));
    }
    (start..=end).map(|part| machine(with_last(first, part))).collect()
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    let address = text
        .parse()
        .map_err(|_| format!("`{text}` is neither an IP address nor a range such as 10.1.1.5-8"))?;
    machine(address)
}

/// Checks that an address can be one machine's.
fn machine(address: IpAddr) -> Result<IpAddr, String> {
    let is_mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast || is_mapped {
        return Err(format!(
            "`{address}` cannot be a virtual address: it is not the address of one machine"
        ));
    }
    Ok(address)
}

fn last_part(text: &str, radix: u32) -> Option<u16> {
    let is_number = !text.is_empty() && text.len() <= 5 && text.chars().all(|digit| digit.is_digit(radix));
    is_number.then(|| u16::from_str_radix(text, radix).ok()).flatten()
}

/// Last part of a range's end that is written as a whole address.
fn whole_end(first: IpAddr, text: &str) -> Option<u16> {
    let last: IpAddr = text.parse().ok()?;
    let part = match last {
        IpAddr::V4(last) => u16::from(last.octets()[3]),
        IpAddr::V6(last) => last.segments()[7],
    };
    (first.is_ipv4() == last.is_ipv4() && with_last(first, part) == last).then_some(part)
}

fn with_last(address: IpAddr, part: u16) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            Ipv4Addr::new(a, b, c, part.to_be_bytes()[1]).into()
        }
        IpAddr::V6(v6) => {
            let mut segments = v6.segments();
            segments[7] = part;
            Ipv6Addr::from(segments).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text) {
            Ok(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(problem) => problem,
        }
    }

    #[test]
    fn the_grammar_of_openshift_is_understood() {
        for (text, meaning) in [
            ("10.2.3.42", "10.2.3.42"),
            (
                "10.2.3.42,10.2.3.80-84,10.2.3.21",
                "10.2.3.42 10.2.3.80 10.2.3.81 10.2.3.82 10.2.3.83 10.2.3.84 10.2.3.21",
            ),
            (
                "10.1.1.5-8, 42.42.42.42",
                "10.1.1.5 10.1.1.6 10.1.1.7 10.1.1.8 42.42.42.42",
            ),
            ("10.1.1.5-5", "10.1.1.5"),
            ("10.1.1.5-10.1.1.6", "10.1.1.5 10.1.1.6"),
            ("fd00::9-b", "fd00::9 fd00::a fd00::b"),
            ("fd00::ffff-fd00::ffff", "fd00::ffff"),
        ] {
            assert_eq!(shown(text), meaning, "{text}");
        }
    }

    #[test]
    fn every_mistake_is_explained() {
        for (text, part) in [
            ("", "`` is neither an IP address nor a range"),
            ("10.1.1.5,", "`` is neither an IP address nor a range"),
            ("10.1.1.8-5", "start=8 > end=5"),
            ("fd00::b-a", "start=11 > end=10"),
            ("10.1.1.5-6-7", "one `-` at most"),
            ("10.1.1.5-256", "after `-` write the last part of an address"),
            ("10.1.1.5-", "after `-` write the last part of an address"),
            ("10.1.1.5-10.1.2.8", "after `-` write the last part of an address"),
            ("10.1.1.5-fd00::8", "after `-` write the last part of an address"),
            ("fd00::5-g", "after `-` write the last part of an address"),
            ("10.1.1-8", "`10.1.1` is neither an IP address nor a range"),
            ("fd00::0-ffff", "more than 1024 addresses"),
            ("0.0.0.0", "not the address of one machine"),
            ("224.0.0.18", "not the address of one machine"),
            ("127.0.0.1", "not the address of one machine"),
            ("255.255.255.254-255", "`255.255.255.255` cannot be a virtual address"),
            ("::ffff:10.0.0.1", "not the address of one machine"),
            ("host-1", "`host` is neither an IP address nor a range"),
        ] {
            assert!(shown(text).contains(part), "{text}: {}", shown(text));
        }
    }
}
