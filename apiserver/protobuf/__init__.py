"""Bodies in protobuf, as kubectl and client-go send them for built-in kinds. Only reading: every answer is JSON."""

from apiserver.protobuf.decode import ProtobufError, decode

__all__ = ["ProtobufError", "decode"]
