# SPDX-License-Identifier: Apache-2.0
"""The memory that a connection costs a server, with TLS and without, from its first byte to its session. MILLRACE_CONNECTIONS says over how many it
is measured, and MILLRACE_CONNECTS how many come and go."""
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
import time

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, need
from serving import Server, make_certificate, save_listing

CONNECTIONS = int(os.environ.get("MILLRACE_CONNECTIONS", "600"))
CONNECTS = int(os.environ.get("MILLRACE_CONNECTS", "400"))
START = json.dumps({"type": "start", "version": 1}).encode()
START = struct.pack("<IB", len(START), ord("J")) + START
# KiB of a connection, above what was measured by a half: allocators differ.
BOUNDS = {"tcp": {"connected": 6, "started": 8}, "tls": {"connected": 6, "half a record": 6, "half a handshake": 64, "handshaken": 26, "started": 28}}


def tls_client():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """A connection that goes as far as its caller asks."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def hello(self, context, bytes_of_it=None):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.socket.sendall(self.outgoing.read()[:bytes_of_it])

    def handshake(self, context):
        self.hello(context)
        while True:
            self.incoming.write(self.socket.recv(65536))
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                continue
            break
        self.socket.sendall(self.outgoing.read())

    def start(self, encrypted):
        if not encrypted:
            self.socket.sendall(START)
            assert b'"started"' in self.socket.recv(65536)
            return
        self.tls.write(START)
        self.socket.sendall(self.outgoing.read())
        while True:
            self.incoming.write(self.socket.recv(65536))
            try:
                assert b'"started"' in self.tls.read(65536)
                return
            except ssl.SSLWantReadError:
                pass


def reach(client, state, context):
    if state == "half a record":
        client.hello(context, 60)
    if state == "half a handshake":
        client.hello(context)
        assert client.socket.recv(65536)
    if state in ("handshaken", "started") and context:
        client.handshake(context)
    if state == "started":
        client.start(context is not None)


def settled(server):
    """Its resident bytes, once it has done what there is to do."""
    busy = server.processor_seconds()
    while True:
        time.sleep(0.3)
        now = server.processor_seconds()
        if now == busy:
            return server.resident_bytes()
        busy = now


def measure(model, flags, state, context):
    limits = ["--max-sessions", str(2 * CONNECTIONS), "--max-newcomers", str(2 * CONNECTIONS), "--handshake-timeout", "300"]
    with Server(model, *limits, *flags) as server:
        for _ in range(3):  # so that what the first connections alone cost is there before
            clients = [Client(server.port) for _ in range(10)]
            for client in clients:
                reach(client, state, context)
            for client in clients:
                client.socket.close()
        before = settled(server)
        clients = [Client(server.port) for _ in range(CONNECTIONS)]
        for client in clients:
            reach(client, state, context)
        after = settled(server)
        for client in clients:
            client.socket.close()
        return (after - before) / CONNECTIONS / 1024


def churn(model, flags, context):
    """Bytes by which a server grew while so many connections came and went, in each of their states."""
    with Server(model, *flags) as server:
        def come_and_go(times):
            for i in range(times):
                client = Client(server.port)
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if i % 10 == 0:
                    reach(client, "started", context)
                elif i % 10 < 5 and context:
                    client.hello(context, None if i % 2 else 60)
                elif i % 10 < 5:
                    client.socket.sendall(START[: i % len(START)])
                client.socket.close()
        come_and_go(1000)
        before = settled(server)
        come_and_go(CONNECTS)
        return settled(server) - before


def main():
    need(MILLRACE)
    with tempfile.TemporaryDirectory() as folder:
        model = save_listing(folder, np.random.default_rng(1))
        flags = make_certificate(folder)
        carriers = {"tcp": ([], None)}
        if flags:
            carriers["tls"] = (flags, tls_client())
        above = []
        for carrier, (flags, context) in carriers.items():
            for state, bound in BOUNDS[carrier].items():
                kib = measure(model, flags, state, context)
                print(f"{carrier}, {state}: {kib:.1f} KiB a connection", flush=True)
                if kib > bound:
                    above.append(f"{carrier}, {state}: expected at most {bound} KiB, found {kib:.1f}")
            grown = churn(model, flags, context)
            print(f"{carrier}: {grown / 1024:.0f} KiB more after {CONNECTS} connections", flush=True)
            if grown > 4 << 20:
                above.append(f"{carrier}: {grown} bytes more after {CONNECTS} connections")
        assert not above, above


if __name__ == "__main__":
    main()
