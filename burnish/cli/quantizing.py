"""`burnish quantize`: a model in integers where that is faster and near enough, as an ONNX file for any runtime."""

from pathlib import Path
from typing import Annotated, Any

import typer

from burnish.cli.compile_options import CompileOptions, Force, OnnxModel
from burnish.cli.options import OptionsOf
from burnish.cli.output import check_input, check_output, print_answer
from burnish.cli.signatures import Declaration

# The compiler takes a second to import, which `--help` need not wait for.


def quantize(
    model: OnnxModel,
    data: Annotated[Path, typer.Option(help="An .npz file with rows of every input by name.", show_default=False)],
    quantization: Annotated[
        dict[str, Any], OptionsOf(Declaration("burnish.quantization.quantize:Quantization"), least={"error": 0})
    ],
    options: Annotated[CompileOptions, OptionsOf(only=("threads", "shapes", "fixed", "cache_dir", "as_json"))],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL with the suffix .quantized.onnx.")
    ] = None,
    force: Force = False,
) -> None:
    """Quantize a model where integers are faster and near enough, and write it as ONNX (QDQ), for any runtime.

    Prints every layer, its time in integers over that in floats, and why it is left in floats.
    """
    import burnish as bn
    from burnish.quantization.quantize import check_file_name, is_quantized

    output = output or model.with_suffix(".quantized.onnx")
    check_input(model, "model")
    check_input(data, "--data")
    check_file_name(output)
    check_output(output, inputs=[model, data], is_ours=is_quantized, force=force)
    known = options.arguments
    given = {key: known[key] for key in ("threads", "shapes", "fix", "cache_dir")}
    made = bn.quantize(model, data, **quantization, **given)
    made.save(output)
    report = {"output": str(output), "bytes": output.stat().st_size, **made.report.as_json()}
    print_answer(options.as_json, report, str(made.report), f"{output}: {output.stat().st_size / 1e6:.2f} MB")
