import ctypes
import struct

import llvmlite.binding as llvm
import pytest

from burnish.runtime.elf import LinkError, parse
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.link import link
from burnish.runtime.relocate import RULES

AARCH64 = "aarch64-unknown-linux-gnu"

# A constant vector, a table of function addresses, and a reference to a function of another object.
FIRST = """
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
@numbers = internal constant <4 x i32> <i32 1, i32 2, i32 3, i32 4>
declare i32 @three(i32)
define internal i32 @one(i32 %x) { ret i32 101 }
define internal i32 @two(i32 %x) { ret i32 102 }
define i32 @choose(i32 %i) {
  %at = getelementptr ptr, ptr @table, i32 %i
  %f = load ptr, ptr %at
  %r = call i32 %f(i32 0)
  ret i32 %r
}
define i32 @sum(i32 %x) {
  %v = load volatile <4 x i32>, ptr @numbers, align 16
  %s = call i32 @llvm.vector.reduce.add.v4i32(<4 x i32> %v)
  %r = add i32 %s, %x
  ret i32 %r
}
define i32 @other(i32 %x) {
  %a = call i32 @three(i32 %x)
  %b = add i32 %a, 1000
  ret i32 %b
}
declare i32 @llvm.vector.reduce.add.v4i32(<4 x i32>)
"""
# A jump table, a constant shared by name, and an address that goes through the table of addresses (GOT).
SECOND = """
@limit = constant i32 7
define i32 @three(i32 %x) {
entry:
  switch i32 %x, label %other [ i32 0, label %a i32 1, label %b i32 2, label %c i32 3, label %d i32 4, label %e ]
a:
  ret i32 10
b:
  ret i32 21
c:
  ret i32 32
d:
  ret i32 47
e:
  ret i32 59
other:
  %at = call ptr @address()
  %v = load i32, ptr %at
  ret i32 %v
}
define ptr @address() noinline { ret ptr @limit }
"""


def function(image: Image, name: str):
    loaded = LoadedImage(image)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(loaded.address(name))
    call.loaded = loaded
    return call


@pytest.fixture(scope="module")
def objects(compile_object):
    return {"first": compile_object(FIRST), "second": compile_object(SECOND)}


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_objects_find_each_other_and_their_constants(objects, order) -> None:
    image = link({name: objects[name] for name in order})
    assert set(image.symbols) == {"choose", "sum", "other", "three", "address", "limit"}
    assert [function(image, "choose")(i) for i in (0, 1)] == [101, 102]
    assert function(image, "sum")(5) == 15
    assert [function(image, "other")(x) for x in range(6)] == [1010, 1021, 1032, 1047, 1059, 1007]


def test_an_image_loads_at_two_addresses(objects) -> None:
    image = link(objects)
    first, second = function(image, "choose"), function(image, "choose")
    assert first.loaded.base != second.loaded.base
    assert [first(1), second(1)] == [102, 102]


def test_loaded_code_cannot_be_written(objects) -> None:
    loaded = LoadedImage(link(objects))
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(x, 16) for x in span.split("-"))
            if start <= loaded.base < end:
                assert mode == "r-xp"
                return
    pytest.fail("the image is not mapped")


def test_alignment_of_sections_is_honoured(compile_object) -> None:
    text = '@aligned{0} = constant [3 x i8] c"abc", align 64\ndefine ptr @at{0}() {{ ret ptr @aligned{0} }}'
    image = link({str(i): compile_object(text.format(i)) for i in range(3)})
    assert all(image.symbols[f"aligned{i}"] % 64 == 0 for i in range(3))
    assert all(image.symbols[f"at{i}"] % 16 == 0 for i in range(3))
    assert [image.data[image.symbols[f"aligned{i}"] :][:3] for i in range(3)] == [b"abc"] * 3


def test_an_undefined_symbol_is_named_with_its_object(objects) -> None:
    with pytest.raises(LinkError, match="object 'first' refers to 'three', which no object defines"):
        link({"first": objects["first"]})


def test_a_repeated_symbol_is_named_with_both_objects(objects) -> None:
    with pytest.raises(LinkError, match=r"objects 'second' and 'again' both define '(limit|three|address)'"):
        link({"second": objects["second"], "again": objects["second"]})


def test_a_weak_symbol_yields_to_a_strong_one(compile_object) -> None:
    weak = compile_object("define weak i32 @f(i32 %x) { ret i32 1 }")
    strong = compile_object("define i32 @f(i32 %x) { ret i32 2 }")
    assert function(link({"weak": weak, "strong": strong}), "f")(0) == 2
    assert function(link({"strong": strong, "weak": weak}), "f")(0) == 2


def test_mutable_globals_are_refused(compile_object) -> None:
    source = "@counter = internal global i32 {}\ndefine ptr @f() {{ ret ptr @counter }}"
    for value, section in ((0, ".bss"), (5, ".data")):
        with pytest.raises(LinkError, match=f"object 'k' has mutable globals in section '{section}'"):
            link({"k": compile_object(source.format(value))})


def test_objects_of_two_machines_are_refused(compile_object, objects) -> None:
    foreign = compile_object("define void @f() { ret void }", AARCH64)
    native = parse("second", objects["second"]).machine
    with pytest.raises(LinkError, match=f"object '.*' is for .*, the others for {native}"):
        link({"second": objects["second"], "foreign": _other_machine(foreign, native)})


def _other_machine(data: bytes, native: str) -> bytes:
    """The object, relabelled if the tests happen to run on its machine."""
    return data if native != "aarch64" else data[:18] + struct.pack("<H", 62) + data[20:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "object 'k' starts with b'', allowed: little-endian ELF64"),
        (lambda data: b"MZ" + data[2:], "allowed: little-endian ELF64"),
        (lambda data: data[:16] + struct.pack("<H", 2) + data[18:], "ELF type 2 for machine .*, allowed: type 1"),
        (lambda data: data[:18] + struct.pack("<H", 21) + data[20:], "machine 21, allowed: type 1"),
        (lambda data: data[: len(data) // 2], "is truncated or damaged"),
    ],
)
def test_a_damaged_object_is_refused(objects, damage, message) -> None:
    with pytest.raises(LinkError, match=message):
        link({"k": damage(objects["second"])})


def test_no_objects_are_refused() -> None:
    with pytest.raises(LinkError, match="no objects"):
        link({})


def test_a_distance_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError, match="distance 2147483648 exceeds 32 bits"):
        RULES["x86_64"][2].apply(bytearray(8), 0, 1 << 31)
    with pytest.raises(OverflowError, match="offset 12 is no multiple of 8"):
        RULES["aarch64"][286].apply(bytearray(8), 0, 12)


# The fields of AArch64 instructions are decoded here independently of the rules that fill them in.


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _words(image: Image, name: str, count: int = 12) -> list[tuple[int, int]]:
    start = image.symbols[name]
    return [(start + 4 * i, struct.unpack_from("<I", image.data, start + 4 * i)[0]) for i in range(count)]


def _adrp(place: int, word: int) -> int:
    return (place & ~0xFFF) + (_signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12)


def test_aarch64_addresses_and_calls(compile_object) -> None:
    padding = "@far{0} = internal constant [9000 x i8] zeroinitializer\ndefine ptr @pad{0}() {{ ret ptr @far{0} }}"
    data = """
@vector = internal constant <4 x float> <float 1.0, float 2.0, float 3.0, float 4.0>
declare void @g(ptr)
define <4 x float> @value() {
  %v = load volatile <4 x float>, ptr @vector
  ret <4 x float> %v
}
define void @caller() {
  call void @g(ptr @vector)
  ret void
}
"""
    image = link({
        "a": compile_object(padding.format("a"), AARCH64),
        "k": compile_object(data, AARCH64),
        "g": compile_object("define void @g(ptr %p) { ret void }", AARCH64),
    })  # fmt: skip
    assert image.machine == "aarch64"
    where = image.data.index(struct.pack("<4f", 1, 2, 3, 4))
    assert where > 4096
    (at, page), (_, load) = [
        w for w in _words(image, "value", 3) if w[1] & 0x9F000000 == 0x90000000 or w[1] >> 22 == 0xF7
    ]
    assert _adrp(at, page) + (load >> 10 & 0xFFF) * 16 == where
    words = _words(image, "caller")
    at, page = next(w for w in words if w[1] & 0x9F000000 == 0x90000000)
    _, add = next(w for w in words if w[1] & 0xFFC00000 == 0x91000000 and w[0] > at)
    assert _adrp(at, page) + (add >> 10 & 0xFFF) == where
    at, branch = next(w for w in words if w[1] & 0xFC000000 == 0x94000000)
    assert at + 4 * _signed(branch & 0x3FFFFFF, 26) == image.symbols["g"]


def test_an_unknown_relocation_names_what_to_do(compile_object) -> None:
    compile_object("define void @f() { ret void }")  # initializes LLVM
    module = llvm.parse_assembly(
        'target triple = "x86_64-unknown-linux-gnu"\n@c = internal constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n'
        "define i32 @f(i64 %i) {\n %p = getelementptr i32, ptr @c, i64 %i\n %v = load i32, ptr %p\n ret i32 %v\n}"
    )
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        reloc="static", codemodel="small"
    )
    with pytest.raises(
        LinkError, match=r"object 'k' relocates '.*' with type 1[01], allowed .* compile with reloc='pic'"
    ):
        link({"k": machine.emit_object(module)})
