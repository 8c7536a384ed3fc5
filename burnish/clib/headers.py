"""C header and C++ wrapper of a library: declarations, and what a caller must know of inputs, outputs and states."""

from __future__ import annotations

from burnish.clib.library import CODES, CLibrary
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import TensorSpec

_TYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip

_HEADER = """\
/* {p}: a model compiled by Burnish for {target}.
 *
{tensors}
 *
 * Link lib{p}.a with -lpthread, or lib{p}.so. Neither needs Python or LLVM.
 *
 * A context is used by one thread at a time; several contexts may run at the same time. The first context decides how
 * many threads share the work of a call; those of later contexts are that number, or 1. Functions that return int
 * return one of the codes below, and change nothing where that is not {P}_OK.
 */
#ifndef {P}_H
#define {P}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {p} {p};

enum {{
{codes}
}};

{constants}

/* A context on `threads` threads (0: as compiled, at most one a core). Dimensions have their usual values. */
int {p}_create(int threads, {p} **context);

/* Frees a context; null is nothing. */
void {p}_destroy({p} *context);

/* Sets the number `dimension` of the sizes below. Inputs and outputs must be set again. */
int {p}_set_size({p} *context, int dimension, int64_t value);

/* Memory that the next runs read an input from, and must stay; `bytes` is {p}_input_bytes. */
int {p}_set_input({p} *context, int input, const void *data, size_t bytes);

/* Memory that the next runs write an output to, in place of the context's own; apart from all inputs. */
int {p}_set_output({p} *context, int output, void *data, size_t bytes);

/* Computes the outputs from the inputs. */
int {p}_run({p} *context);

/* Where an output is: valid until the next run. Null where there is no such output. */
const void *{p}_output(const {p} *context, int output);

/* Copies an output; `bytes` is {p}_output_bytes. */
int {p}_get_output(const {p} *context, int output, void *data, size_t bytes);

/* Bytes of an input or output; -1 where there is no such. Where a run counts an extent, of the last run. */
int64_t {p}_input_bytes(const {p} *context, int input);
int64_t {p}_output_bytes(const {p} *context, int output);

/* Writes the extents of an output, as many as its rank. */
int {p}_output_shape(const {p} *context, int output, int64_t *shape);

/* Memory of a state, kept from run to run, to read and to write; its bytes where `bytes` is not null. */
void *{p}_state({p} *context, int state, size_t *bytes);

/* Gives every state its initial value. */
int {p}_reset({p} *context);

/* What a code says. */
const char *{p}_error(int code);

#ifdef __cplusplus
}}
#endif
#endif
"""

_WRAPPER = """\
// {p}: RAII around the C library of {p}.h. Errors are std::runtime_error.
#ifndef {P}_HPP
#define {P}_HPP

#include <stdexcept>
#include <vector>

#include "{p}.h"

namespace burnish_{p} {{

class Model {{
 public:
  explicit Model(int threads = 0) {{ check({p}_create(threads, &context_)); }}
  ~Model() {{ {p}_destroy(context_); }}
  Model(const Model &) = delete;
  Model &operator=(const Model &) = delete;
  Model(Model &&other) noexcept : context_(other.context_) {{ other.context_ = nullptr; }}
  Model &operator=(Model &&other) noexcept {{
    if (this != &other) {{
      {p}_destroy(context_);
      context_ = other.context_;
      other.context_ = nullptr;
    }}
    return *this;
  }}

  void set_size(int dimension, int64_t value) {{ check({p}_set_size(context_, dimension, value)); }}

  template <class T>
  void set_input(int input, const T *data, size_t elements) {{
    check({p}_set_input(context_, input, data, elements * sizeof(T)));
  }}
  template <class T>
  void set_input(int input, const std::vector<T> &data) {{ set_input(input, data.data(), data.size()); }}
  template <class T>
  void set_input(int input, std::vector<T> &&data) = delete;  // it would be gone before the run

  void run() {{ check({p}_run(context_)); }}

  template <class T>
  std::vector<T> output(int output) const {{
    std::vector<T> found(static_cast<size_t>({p}_output_bytes(context_, output)) / sizeof(T));
    check({p}_get_output(context_, output, found.data(), found.size() * sizeof(T)));
    return found;
  }}
  std::vector<int64_t> output_shape(int output, size_t rank) const {{
    std::vector<int64_t> found(rank + 1);
    check({p}_output_shape(context_, output, found.data()));
    found.resize(rank);
    return found;
  }}
  void reset() {{ check({p}_reset(context_)); }}
  {p} *context() {{ return context_; }}

 private:
  static void check(int code) {{
    if (code != {P}_OK) throw std::runtime_error({p}_error(code));
  }}
  {p} *context_ = nullptr;
}};

}}  // namespace burnish_{p}
#endif
"""


def c_header(library: CLibrary) -> str:
    """The text of the C header."""
    own, p = library.executable, library.name
    upper = p.upper()
    lines = [_described("input", i, spec) for i, spec in enumerate(own.inputs)]
    lines += [_described("output", i, spec) for i, spec in enumerate(own.outputs)]
    lines += [_described("state", i, spec) for i, spec in enumerate(own.states)]
    counted = set(own.counted)
    for i, d in enumerate(own.dims):
        how = f"counted by a run, at most {d.high}" if d in counted else f"{d.low} to {d.high}, at first {d.hint}"
        lines.append(f"size {i}: {d}, {how}")
    codes = ",\n".join(f"  {upper}_{word} = {code}" for code, (word, _) in CODES.items())
    constants = [
        f"#define {upper}_{role.upper()}S {len(specs)}"
        for role, specs in (("input", own.inputs), ("output", own.outputs), ("state", own.states), ("size", own.dims))
    ]
    for role, specs in (("input", own.inputs), ("output", own.outputs)):
        constants += [f"#define {upper}_{role.upper()}{i}_RANK {len(spec.shape)}" for i, spec in enumerate(specs)]
    return _HEADER.format(
        p=p, P=upper, target=_harmless(own.target), codes=codes, constants="\n".join(constants),
        tensors="\n".join(f" *   {_harmless(line)}" for line in lines),
    )  # fmt: skip


def cpp_header(library: CLibrary) -> str:
    """The text of the header-only C++ wrapper."""
    return _WRAPPER.format(p=library.name, P=library.name.upper())


def _described(role: str, number: int, spec: TensorSpec) -> str:
    shape = ", ".join(map(str, spec.shape))
    kind = _TYPES.get(spec.dtype) or f"{numpy_dtype(spec.dtype).itemsize} bytes"
    return f"{role} {number}: {spec.name}, {spec.dtype}[{shape}] ({kind})"


def _harmless(text: str) -> str:
    """Text that cannot end a comment of C."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /").replace("/*", "/ *")
