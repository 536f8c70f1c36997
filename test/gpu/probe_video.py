#!/usr/bin/env python3
"""What a session of the video decoder takes and shows, one JSON fact a line: to decide whether a program with one may be swapped.

  probe_video.py                                      natively
  LD_PRELOAD=.../libnvshare.so probe_video.py         under nvshare, beside a scheduler: standard error must have one warning that the
                                                      program keeps its memory, after `session` and not after `loaded`

Needs libcuda.so.1 and libnvcuvid.so.1 (a GPU with decoders: H100, H200, L4 ...), and Python's standard library. Says "no libnvcuvid" and
ends with 0 where that is missing. Facts:
  loaded    the library is loaded and no session is open: bytes in use on the GPU
  session   a decoder was created: the code it returned, bytes that it took, whether `cuMemAlloc` memory made before still reads back
  destroyed bytes that came free
"""

import ctypes
import json
import sys

H264, YUV_420, NV12, PREFER_NVDEC = 4, 1, 0, 4
ULONG = ctypes.c_ulong


class Rectangle(ctypes.Structure):
    _fields_ = [(name, ctypes.c_short) for name in ("left", "top", "right", "bottom")]


class CreateInfo(ctypes.Structure):
    """CUVIDDECODECREATEINFO of the Video Codec SDK, cuviddec.h."""

    _fields_ = [
        ("width", ULONG),
        ("height", ULONG),
        ("decode_surfaces", ULONG),
        ("codec", ctypes.c_int),
        ("chroma", ctypes.c_int),
        ("flags", ULONG),
        ("depth_minus_8", ULONG),
        ("intra_only", ULONG),
        ("width_max", ULONG),
        ("height_max", ULONG),
        ("reserved1", ULONG),
        ("display", Rectangle),
        ("output_format", ctypes.c_int),
        ("deinterlace", ctypes.c_int),
        ("target_width", ULONG),
        ("target_height", ULONG),
        ("output_surfaces", ULONG),
        ("lock", ctypes.c_void_p),
        ("target", Rectangle),
        ("histogram", ULONG),
        ("reserved2", ULONG * 4),
    ]


def fact(name, **values):
    print(json.dumps({"fact": name, **values}), flush=True)


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    try:
        video = ctypes.CDLL("libnvcuvid.so.1")
    except OSError as error:
        fact("no libnvcuvid", why=str(error))
        return 0

    def check(code, what):
        if code != 0:
            sys.exit(f"{what}: CUDA error {code}")

    context = ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def in_use():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
        return total.value - free.value

    size = 64 << 20
    memory = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)), "cuMemAlloc")
    check(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(0x5A), ctypes.c_size_t(size)), "cuMemsetD8")
    before = in_use()
    fact("loaded", in_use=before)

    info = CreateInfo(
        width=1920, height=1088, decode_surfaces=8, codec=H264, chroma=YUV_420, flags=PREFER_NVDEC, width_max=1920, height_max=1088,
        display=Rectangle(0, 0, 1920, 1088), output_format=NV12, target_width=1920, target_height=1088, output_surfaces=2,
    )
    decoder = ctypes.c_void_p()
    code = video.cuvidCreateDecoder(ctypes.byref(decoder), ctypes.byref(info))
    host = ctypes.create_string_buffer(size)
    check(cuda.cuMemcpyDtoH_v2(host, memory, ctypes.c_size_t(size)), "cuMemcpyDtoH")
    with_session = in_use()
    fact("session", code=code, took=with_session - before, memory_is_right=host.raw == b"\x5a" * size)
    if code == 0:
        check(video.cuvidDestroyDecoder(decoder), "cuvidDestroyDecoder")
        fact("destroyed", freed=with_session - in_use())
    return 0


if __name__ == "__main__":
    sys.exit(main())
