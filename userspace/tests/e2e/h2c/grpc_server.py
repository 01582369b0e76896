"""A gRPC server: /test.Echo/Once gives a message back, /test.Echo/Stream each of many, both with the server's name."""
import sys
from concurrent import futures

import grpc


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        name = sys.argv[2].encode() + b":"
        if details.method == "/test.Echo/Once":
            return grpc.unary_unary_rpc_method_handler(lambda message, context: name + message)
        if details.method == "/test.Echo/Stream":
            return grpc.stream_stream_rpc_method_handler(
                lambda messages, context: (name + message for message in messages))
        return None


server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((Echo(),))
assert server.add_insecure_port(sys.argv[1])
server.start()
print("serving", flush=True)
server.wait_for_termination()
