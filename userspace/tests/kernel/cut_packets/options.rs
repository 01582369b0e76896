//! TCP options, to be put one after the other.

pub(crate) const NOP: [u8; 1] = [1];
pub(crate) const SACK_PERMITTED: [u8; 2] = [4, 2];

pub(crate) fn mss(size: u16) -> Vec<u8> {
    [&[2, 4][..], &size.to_be_bytes()].concat()
}

pub(crate) fn scale(by: u8) -> Vec<u8> {
    vec![3, 3, by]
}

pub(crate) fn stamps(value: u32, echo: u32) -> Vec<u8> {
    [&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

pub(crate) fn sack(blocks: &[(u32, u32)]) -> Vec<u8> {
    let mut option = vec![5, 2 + 8 * blocks.len() as u8];
    for (from, to) in blocks {
        option.extend(from.to_be_bytes());
        option.extend(to.to_be_bytes());
    }
    option
}

/// Makes the timestamp option as Linux sends it with every packet: after two NOPs.
pub(crate) fn usual_stamps(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1][..], &stamps(value, echo)].concat()
}

/// Makes the options of a SYN of Linux, in its order.
pub(crate) fn offer(size: u16, value: u32, echo: u32, by: u8) -> Vec<u8> {
    [&mss(size)[..], &SACK_PERMITTED, &stamps(value, echo), &NOP, &scale(by)].concat()
}
