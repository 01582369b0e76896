"""A gRPC server, at an address under a name, in TLS with a file of certificate and key.

/test.Echo/Once gives a message back and /test.Echo/Stream each of many, both with the server's name; /test.Echo/Count
sends as many messages as it is asked for, /test.Echo/Fail an error and nothing else, /test.Echo/Break a message and then
an error; /test.Echo/Wait says nothing until the call has ended.
"""
import sys
import threading
from concurrent import futures

import grpc

address, name = sys.argv[1:3]


def count(message, context):
    for number in range(int(message)):
        yield str(number).encode()


def fail(message, context):
    context.set_trailing_metadata((("why", "because"), ("details-bin", bytes(range(256)))))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not so")


def break_off(message, context):
    yield message
    context.abort(grpc.StatusCode.DATA_LOSS, "lost")


def wait(message, context):
    ended = threading.Event()
    context.add_callback(ended.set)
    print("waits", flush=True)
    ended.wait(60)
    print("ended", flush=True)
    return message


def stream(messages, context):
    context.add_callback(lambda: print("stream ended", flush=True))
    for message in messages:
        yield name.encode() + b":" + message


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        handlers = {
            "/test.Echo/Once": grpc.unary_unary_rpc_method_handler(
                lambda message, context: name.encode() + b":" + message),
            "/test.Echo/Stream": grpc.stream_stream_rpc_method_handler(stream),
            "/test.Echo/Count": grpc.unary_stream_rpc_method_handler(count),
            "/test.Echo/Fail": grpc.unary_unary_rpc_method_handler(fail),
            "/test.Echo/Break": grpc.unary_stream_rpc_method_handler(break_off),
            "/test.Echo/Wait": grpc.unary_unary_rpc_method_handler(wait),
        }
        return handlers.get(details.method)


server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((Echo(),))
if len(sys.argv) > 3:
    pem = open(sys.argv[3], "rb").read()
    assert server.add_secure_port(address, grpc.ssl_server_credentials([(pem, pem)]))
else:
    assert server.add_insecure_port(address)
server.start()
print("serving", flush=True)
server.wait_for_termination()
