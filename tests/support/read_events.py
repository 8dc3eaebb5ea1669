"""Reads TensorBoard event files with its own code, and prints their scalars:  read_events.py FILE...   ->  STEP NAME VALUE"""
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8]), "checksum of a length"
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body), "checksum of a record"
        yield body
        at += 16 + size


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message: {number: [raw value]}"""
    at, found = 0, {}
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


for path in sys.argv[1:]:
    events = [fields(body) for body in records(open(path, "rb").read())]
    assert events[0][3] == [b"brain.Event:2"], "the first event has the version"
    for event in events[1:]:
        for summary in event[5]:
            for value in fields(summary)[1]:
                scalar = fields(value)
                print(event.get(2, [0])[0], scalar[1][0].decode(), "%.9g" % struct.unpack("<f", scalar[2][0]))
