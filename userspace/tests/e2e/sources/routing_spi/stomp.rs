//! Publisher, as simple as possible: not the client that is tested.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use super::activemq::LONG;

/// Messages in a transaction: a publisher that waited for each would take most of the time.
const BATCH: usize = 500;

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut client = Self {
            stream: BufReader::new(stream),
        };
        client.say("CONNECT\naccept-version:1.1\nhost:test\nheart-beat:0,0\n\n\0");
        assert!(client.frame().starts_with("CONNECTED"));
        client
    }

    fn say(&mut self, frame: &str) {
        self.stream.get_mut().write_all(frame.as_bytes()).unwrap();
    }

    fn frame(&mut self) -> String {
        let mut bytes = Vec::new();
        self.stream.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "the broker hung up");
        String::from_utf8(bytes).unwrap().trim_start().to_owned()
    }

    /// Publishes texts, in order, and returns when the broker has them.
    pub(crate) fn publish(&mut self, destination: &str, texts: &[String]) {
        for (number, batch) in texts.chunks(BATCH).enumerate() {
            let mut frames = format!("BEGIN\ntransaction:{number}\n\n\0");
            for (at, text) in batch.iter().enumerate() {
                // ActiveMQ takes a message with a length for a BytesMessage, one without for a TextMessage.
                let length = if at % 2 == 0 {
                    format!("content-length:{}\n", text.len())
                } else {
                    String::new()
                };
                frames += &format!(
                    "SEND\ntransaction:{number}\ndestination:{destination}\npersistent:true\n{length}\n{text}\0"
                );
            }
            frames += &format!("COMMIT\ntransaction:{number}\nreceipt:{number}\n\n\0");
            self.say(&frames);
            let receipt = self.frame();
            assert!(receipt.starts_with("RECEIPT"), "{receipt}");
        }
    }

    /// The body of the first message there is.
    pub(crate) fn first(&mut self, destination: &str) -> String {
        self.say(&format!("SUBSCRIBE\nid:0\ndestination:{destination}\nack:client\n\n\0"));
        let frame = self.frame();
        frame.split_once("\n\n").unwrap().1.to_owned()
    }

    /// Takes the first message there is, and refuses it. Returns its body.
    pub(crate) fn refuse_first(&mut self, destination: &str) -> String {
        self.say(&format!(
            "SUBSCRIBE\nid:0\ndestination:{destination}\nack:client-individual\nactivemq.prefetchSize:1\n\n\0"
        ));
        let frame = self.frame();
        let id = frame.lines().find_map(|line| line.strip_prefix("message-id:")).unwrap();
        self.say(&format!("NACK\nmessage-id:{id}\nsubscription:0\nreceipt:n\n\n\0"));
        assert!(self.frame().starts_with("RECEIPT"));
        frame.split_once("\n\n").unwrap().1.to_owned()
    }
}
