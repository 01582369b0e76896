#!/usr/bin/env python3
"""Writes the seed corpora: what real clients send (openssl, curl), and by hand what the installed ones cannot.

Run it again only to add seeds; the files are checked in, and random bytes in them make each run differ.
"""
import os
import socket
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "app.apps.cluster1.example.com"


def save(target, name, data):
    os.makedirs(os.path.join(HERE, target), exist_ok=True)
    with open(os.path.join(HERE, target, name), "wb") as file:
        file.write(data)


def record(*command):
    """The first bytes that a client sends to a server that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        client = subprocess.Popen([word.replace("PORT", port) for word in command], **quiet)
        connection, _ = server.accept()
        connection.settimeout(1)
        data = b""
        try:
            while piece := connection.recv(65536):
                data += piece
        except TimeoutError:
            pass
        connection.close()
        client.kill()
        client.wait()
    # The port of the run is no part of what is tested.
    return data.replace(b":" + port.encode(), b":8080")


def block16(data):
    return struct.pack(">H", len(data)) + data


def extension(kind, data):
    return struct.pack(">H", kind) + block16(data)


def client_hello(extensions):
    random = os.urandom(32)
    suites = block16(bytes.fromhex("130113021303c02bc02f"))
    body = b"\x03\x03" + random + b"\x20" + os.urandom(32) + suites + b"\x01\x00" + block16(b"".join(extensions))
    return b"\x01" + struct.pack(">I", len(body))[1:] + body


def records(message, size=16384):
    cut = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + block16(piece) for piece in cut)


def sni(host):
    return extension(0, block16(b"\x00" + block16(host.encode())))


def hand_made_hellos():
    versions = extension(43, b"\x02\x03\x04")
    groups = extension(10, block16(bytes.fromhex("11ec001d")))
    alpn = extension(16, block16(b"\x02h2\x08http/1.1"))
    # X25519MLKEM768 (0x11ec): an ML-KEM-768 key of 1184 bytes and an X25519 one of 32.
    keys = block16(struct.pack(">H", 0x11EC) + block16(os.urandom(1216)) + bytes.fromhex("001d") + block16(os.urandom(32)))
    post_quantum = client_hello([extension(51, keys), groups, versions, alpn, sni(HOST)])
    save("peek_tls", "post_quantum", records(post_quantum))
    save("peek_tls", "post_quantum_in_three_records", records(post_quantum, 700))
    save("peek_tls", "small_in_tiny_records", records(client_hello([sni("a.example"), versions]), 16))
    save("peek_tls", "two_names", records(client_hello([sni("a.example"), sni("b.example")])))
    save("peek_tls", "ech", records(client_hello([versions, extension(0xFE0D, b"\x00" * 40), sni("public.example")])))
    save("peek_tls", "alert", bytes.fromhex("15030100020228"))


def recorded_hellos():
    client = ["openssl", "s_client", "-connect", "127.0.0.1:PORT"]
    save("peek_tls", "openssl_tls12", record(*client, "-tls1_2", "-servername", HOST))
    save("peek_tls", "openssl_tls13_alpn", record(*client, "-servername", HOST, "-alpn", "h2,http/1.1"))
    save("peek_tls", "openssl_no_name", record(*client, "-noservername"))


def requests():
    client = ["curl", "--silent", "--connect-to", f"{HOST}:PORT:127.0.0.1:PORT", f"http://{HOST}:PORT/a?b=c"]
    save("peek_http", "curl_get", record(*client))
    save("peek_http", "curl_post", record(*client, "--data", "x=1"))
    save("peek_http", "curl_h2c", record(*client, "--http2-prior-knowledge"))
    save("peek_http", "curl_h2c_upgrade", record(*client, "--http2"))
    save("peek_http", "absolute_form", b"GET http://a.example/x HTTP/1.1\r\nHost: b.example\r\n\r\n")
    save("peek_http", "connect", b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n")
    save("peek_http", "http10", b"GET / HTTP/1.0\r\n\r\n")
    save("peek_http", "no_host", b"GET / HTTP/1.1\r\nAccept: */*\r\n\r\n")
    save("peek_http", "two_hosts", b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n")
    save("peek_http", "ipv6_host", b"GET / HTTP/1.1\r\nhost: [2001:db8::1]:8080\r\n\r\n")
    # Found by fuzzing: a fault that is seen before the end of the line may not depend on the rest of the line.
    save("peek_http", "carriage_return_alone", b"GET / HTTP/1.0\rP/1.0\xdb\xff?\0")
    continued()


def frame(kind, flags, stream, data):
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def continued():
    """A header block in HEADERS and CONTINUATION, padded and with a priority: all that a frame can do to it."""
    block = b"\x82\x86\x84\x41" + bytes([len(HOST)]) + HOST.encode()
    headers = frame(1, 0x08 | 0x20, 1, b"\x02" + b"\x00\x00\x00\x00\x10" + block[:9] + b"\x00\x00")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"")
    save("peek_http", "h2c_continuation", preface + headers + frame(9, 4, 1, block[9:]))
    # A client that has been greeted: a PING, the acknowledgement, and the request.
    greeted = frame(6, 0, 0, b"12345678") + frame(4, 1, 0, b"") + frame(1, 4, 1, block)
    save("peek_http", "h2c_greeted", preface + greeted)


def proxy_headers():
    save("peek_proxy", "v1_tcp4", b"PROXY TCP4 192.0.2.1 198.51.100.1 50000 443\r\nGET / HTTP/1.1\r\n")
    save("peek_proxy", "v1_tcp6", b"PROXY TCP6 2001:db8::1 2001:db8::2 50000 443\r\n")
    save("peek_proxy", "v1_unknown", b"PROXY UNKNOWN\r\n\x16\x03\x01")
    signature = b"\r\n\r\n\0\r\nQUIT\n"
    ipv4 = bytes([192, 0, 2, 1, 198, 51, 100, 1]) + struct.pack(">HH", 50000, 443)
    ipv6 = bytes(32) + struct.pack(">HH", 50000, 443)
    authority = b"\x02" + block16(HOST.encode())
    save("peek_proxy", "v2_tcp4", signature + b"\x21\x11" + block16(ipv4) + b"\x16\x03\x01")
    save("peek_proxy", "v2_tcp6_authority", signature + b"\x21\x21" + block16(ipv6 + authority))
    save("peek_proxy", "v2_local", signature + b"\x20\x00" + block16(b""))
    save("peek_proxy", "v2_unix", signature + b"\x21\x31" + block16(bytes(216)))
    save("peek_proxy", "none", b"GET / HTTP/1.1\r\n")


def services():
    """Packets of layer-4 services, several in a file, each behind its distance in time and its length; the first byte says
    what of it is guarded."""

    def l4(protocol, source, destination, flags):
        ports = struct.pack(">HH", source, destination)
        if protocol == 6:
            return ports + struct.pack(">IIBBHHH", 1000, 0, 5 << 4, flags, 4096, 0, 0)
        return ports + struct.pack(">HH", 8, 0)

    def v4(protocol, *what, source=(192, 0, 2, 7), payload=None):
        payload = l4(protocol, *what) if payload is None else payload
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0)
        return head + bytes(source) + bytes((198, 51, 100, 2)) + payload

    def v6(protocol, *what, extension=b"", following=None):
        payload = extension + l4(protocol, *what)
        head = struct.pack(">IHBB", 6 << 28, len(payload), following or protocol, 64)
        ends = bytes.fromhex("20010db8000100000000000000000007" "20010db8000200000000000000000002")
        return head + ends + payload

    def several(*packets, rules=0):
        return bytes([rules]) + b"".join(bytes([1, len(packet)]) + packet for packet in packets)

    opened = v4(6, 40000, 80, 2)
    save("l4", "tcp", several(opened, v4(6, 40000, 80, 16), v4(6, 40000, 81, 2), v4(6, 40000, 82, 2)))
    save("l4", "udp", several(v4(17, 5, 80, 0), v6(17, 5, 80, 0), v6(17, 5, 82, 0)))
    # A cookie, an impossible packet, one too many, a listener's that passes.
    save("l4", "shield", several(v4(6, 40000, 81, 2), v4(6, 40000, 80, 3), *[opened] * 4, v6(6, 9, 81, 16), rules=0b0111_0111))
    first, later = bytes([17, 0, 0, 1, 0, 0, 0, 9]), bytes([17, 0, 0, 17, 0, 0, 0, 9])
    fragments = [v6(17, 5, 80, 0, extension=header, following=44) for header in (first, later)]
    save("l4", "fragments", several(*fragments))
    error = bytes([3, 4, 0, 0, 0, 0, 5, 0]) + v4(6, 80, 40000, 18)
    save("l4", "icmp", several(v4(6, 40000, 81, 2), v4(1, source=(203, 0, 113, 5), payload=error)))


def http1():
    """Messages of HTTP/1; bodies, streams and fields stand behind a byte that says how they are taken."""
    host = b"Host: a.test\r\n"
    heads = {
        "get": b"GET /a/b?c=d HTTP/1.1\r\n" + host + b"Accept: */*\r\n\r\n",
        "absolute": b"\r\nPUT http://a.test:80?x HTTP/1.1\r\nhost:a.test\r\nContent-Length: 3\r\n\r\nabc",
        "http10": b"GET http://a.test HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "websocket": b"GET / HTTP/1.1\r\n" + host + b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "hop": b"GET / HTTP/1.1\r\n" + host + b"Connection: TE, x\r\nX: 1\r\nTE: gzip, trailers\r\nKeep-Alive: 5\r\n\r\n",
        "connect": b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
        "options": b"OPTIONS * HTTP/1.1\r\n" + host + b"\r\n",
        "answer": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nhello",
        "answer10": b"HTTP/1.0 204 N\xfc\r\nContent-Length: 0\r\n\r\n",
        "interim": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nuntil close",
        "folded": b"GET / HTTP/1.1\r\n" + host + b"X: a\r\n b\r\n\r\n",
    }
    chunks = b"5;a=\"b\"\r\nhello\r\n00a \t;x\r\n0123456789\r\n0\r\nDigest: x\r\n\r\n"
    chunked = b"POST / HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    for name, head in heads.items():
        save("http1_head", name, head)
        save("http1_hyper", name, b"\x06" + head)
    save("http1_hyper", "pipelined", b"\x1f" + chunked + heads["get"] + heads["absolute"][2:])
    save("http1_hyper", "answer_chunked", b"\x03HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    save("http1_body", "extensions_and_trailers", b"\x02" + chunks + b"GET")
    save("http1_body", "large", b"\x00" + b"ffffffffffffffff\r\nab")
    save("http1_body", "empty", b"\x00" + b"0\r\n\r\n")
    # GET over HTTP/1.1: connected, begun, ended, a final answer, its end.
    save("http1_turn", "get", bytes([0x0C, 0x0D, 10, 16, 18, 0x9F, 1]))
    save("http1_turn", "retried", bytes([0x0C, 0x0D, 10, 16, 18, 8, 10, 16, 18, 0x9F, 1]))
    save("http1_turn", "upgrade", bytes([0x2C, 0x0D, 10, 16, 18, 0x3F, 19]))
    save("http1_turn", "early_answer", bytes([0x1D, 0x0D, 10, 16, 17, 0x1F, 0x9F, 14, 1]))
    chain = b"X-Forwarded-For: 203.0.113.9, 192.0.2.9\r\nx-forwarded-proto: http\r\nForwarded: for=\"[::1]\"\r\n\r\n"
    for policy in range(4):
        save("forwarded", f"stranger_{policy}", bytes([policy | 8]) + chain)
        save("forwarded", f"trusted_{policy}", bytes([policy | 4]) + chain)
    save("cookie", "among_others", b"Cookie: a=1; sb=x7; c=\"2\"\r\nCookie: sb=y\r\n\r\n")
    save("cookie", "value", b"a1b2c3")


if __name__ == "__main__":
    http1()
    services()
    hand_made_hellos()
    recorded_hellos()
    requests()
    proxy_headers()
