"""A worker whose server runs while a forked child of it lives, as a data loader's does; prints its port and the child.

usage: keep_port.py NAME SECRET [frozen]

With `frozen` it stops itself instead (SIGSTOP) once it serves. It ends with its standard input.
"""

import os
import signal
import sys

from heterotrain.groups.peering.server import PeerServer

name, secret, *frozen = sys.argv[1:]
server = PeerServer("job", name, f"uid of {name}", secret=secret, host="127.0.0.1")
server.start()
opened, open_now = os.pipe()
server.on_opened(lambda channel: os.write(open_now, b"1") and None)
print(server.port, flush=True)
os.read(opened, 1)
if frozen:
    os.kill(os.getpid(), signal.SIGSTOP)
child = os.fork()
if child == 0:
    signal.alarm(120)
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
