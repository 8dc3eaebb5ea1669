"""no_such_name.py ADDRESS - a name server that answers NXDOMAIN to every question at once, like a cluster's.

The DNS of podman's network asks it for names other than containers; without an answer, a process that resolves a peer
that has not started would wait 20 seconds for each try.
"""
import socket
import sys

NXDOMAIN = 0x8183 # an answer, recursion available, no such name

listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind((sys.argv[1], 53))
while True:
    question, peer = listener.recvfrom(4096)
    if len(question) < 12:
        continue
    end = 12
    while end < len(question) and question[end] != 0:
        end += question[end] + 1
    counts = (1).to_bytes(2, "big") + bytes(6)
    listener.sendto(question[:2] + NXDOMAIN.to_bytes(2, "big") + counts + question[12:end + 5], peer)
