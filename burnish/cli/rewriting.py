"""`burnish rewrite generate | list | verify | apply`: substitutions of graphs, their proofs, and models rewritten."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burnish.cli import clock
from burnish.cli.compile_options import CompileOptions, Json, OnnxModel
from burnish.cli.options import OptionsOf
from burnish.cli.output import check_input, check_output, print_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from burnish.rewrite.language.terms import RewriteRule, Term

# The operators take a while to import, which `--help` need not wait for.


def verify(
    file: Annotated[
        Path | None, typer.Argument(help="A file of substitutions; without it, the shipped ones.", show_default=False)
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="Look for proofs of the shipped ones anew.")] = False,
    bindings: Annotated[int, typer.Option(min=1, help="Random sizes and attributes to test every rule at.")] = 12,
    proofs: Annotated[Path | None, typer.Option(help="Write the proofs to this file.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of the tests.")] = 0,
    as_json: Json = False,
) -> None:
    """Test every substitution at random sizes, prove it from the axioms, check its proof; status 1 if one fails."""
    from burnish.rewrite.proofs.verify import read_proofs, read_rule_file, read_rules, verify_rules

    if file is not None:
        check_input(file, "substitutions")
    if proofs is not None:
        check_output(proofs, "--proofs", inputs=[file] if file else [])
    if file is None:
        rules, known = read_rules("substitutions.txt"), None if search else read_proofs()
    else:
        rules, known = read_rule_file(file), None
    report = verify_rules(rules, known=known, bindings=bindings, seed=seed)
    if proofs is not None:
        proofs.write_text("\n".join(map(str, report.proofs.values())), encoding="utf-8")
    rows = [
        {"rule": v.rule.name, "outcome": v.outcome, "reason": v.reason, "seconds": v.seconds} for v in report.verdicts
    ]
    offered = [f"  no proof found, no test fails; an axiom is missing, or:\n{rule}" for rule in report.offered]
    print_answer(as_json, {"rules": len(rules), "verdicts": rows}, str(report), *offered)
    if len(report.of("proved")) < len(rules):
        raise typer.Exit(1)


def list_(
    name: Annotated[str, typer.Argument(help="Only rules with this in their names.")] = "",
    axioms: Annotated[bool, typer.Option("--axioms", help="The axioms instead of the substitutions.")] = False,
    as_json: Json = False,
) -> None:
    """Draw every substitution as two small graphs."""
    from burnish.rewrite.proofs.axioms import load_axioms
    from burnish.rewrite.proofs.verify import load_substitutions

    rules = [r for r in (load_axioms().values() if axioms else load_substitutions()) if name in r.name]
    listed = [{"name": r.name, "origin": r.origin, "text": str(r)} for r in rules]
    print_answer(as_json, {"rules": listed}, "\n\n".join(map(drawing, rules)))


def generate(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    proofs: Annotated[
        Path | None,
        typer.Option(help="Write only what is proved and needed, as Burnish ships it, and the proofs to this file."),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, max=5, help="Operators of the largest terms; without it, the domains' own.")
    ] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain; may be repeated.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the candidates that are not proved, smallest first.")
    ] = False,
) -> None:
    """Find substitutions by enumerating terms, and write them as text: candidates for `verify`.

    With --proofs, and without --size and --domain, the files are those that Burnish ships, to the byte.
    """
    from burnish.errors import ParameterError
    from burnish.rewrite.generation.domains import DOMAINS
    from burnish.rewrite.generation.generate import generate as find
    from burnish.rewrite.generation.generate import text
    from burnish.rewrite.generation.select import select
    from burnish.rewrite.proofs.axioms import load_axioms
    from burnish.rewrite.proofs.verify import read_rules

    unknown = sorted(set(domain or ()) - DOMAINS.keys())
    if unknown:
        raise ParameterError(f"domain '{unknown[0]}' is unknown; known: {', '.join(DOMAINS)}")
    check_output(output)
    if proofs is not None:
        check_output(proofs, "--proofs")
    found = find([DOMAINS[name] for name in domain or DOMAINS], size)
    for each in found:
        print(each)
    if proofs is None:
        output.write_text(text(found), encoding="utf-8")
        print(f"{output}: {sum(len(g.rules) for g in found)} substitutions, tested at random sizes but not proved")
        return
    selected = select(found, read_rules("statements.txt"), load_axioms())
    output.write_text(selected.text, encoding="utf-8")
    proofs.write_text("\n".join(map(str, selected.proofs.values())), encoding="utf-8")
    print(f"{output}: {selected}")
    for rule in selected.unproved if show else ():
        print(rule)


def apply_(
    model: OnnxModel,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    options: Annotated[CompileOptions, OptionsOf(only=("target", "threads", "exact", "shapes", "as_json"))],
    seconds: Annotated[float, typer.Option(min=0.001, help="Time to search for.")] = 5.0,
    minimize: Annotated[str, typer.Option(help="time, flops, or time+flops.")] = "time",
    memory_limit: Annotated[
        int | None, typer.Option(help="Bytes that the compiled model may take.", show_default=False)
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also time the model without each of the substitutions.")
    ] = False,
) -> None:
    """Rewrite a model to what should take the least time, and write it as ONNX, for any runtime.

    If the target is this machine, both graphs are compiled and timed in turns; one that does not win is not written.
    """
    from onnx import save

    from burnish.driver.checks import check_common, check_model
    from burnish.driver.compilation import import_graph
    from burnish.driver.contributions import contributions
    from burnish.driver.rewritten import rewrite_model, shipped_rules
    from burnish.frontend.onnx import to_onnx
    from burnish.machines.target import target as find_target
    from burnish.rewrite.search.objective import objective

    check_input(model, "model")
    check_output(output, inputs=[model])
    threads, exact = options.threads, options.exact
    check_common(threads=threads, exact=exact, shapes=None, cache_dir=None)
    check_model(model)
    how: dict[str, Any] = {
        "target": find_target(options.target, threads=threads),
        "exact": exact,
        "seconds": clock.left(seconds),
    }
    asked = objective(minimize, memory_limit)
    graph, rules = import_graph(model, options.arguments["shapes"]), shipped_rules()
    chosen = rewrite_model(graph, rules, threads=threads, objective=asked, **how)
    facts = chosen.module.rewrites or {}
    if measure:
        found = contributions(graph, chosen, rules, **how)
        facts = {**facts, "without": {n: {"ratio": c.ratio, "low": c.low, "high": c.high} for n, c in found.items()}}
    written = chosen.proposed or chosen.graph
    save(to_onnx(written), output)
    report = {"output": str(output), **facts, "rewritten": written is not graph}
    sizes = f"{output}: {len(graph.nodes)} to {len(written.nodes)} nodes"
    print_answer(options.as_json, report, rewriting_text(facts), sizes)


def rewriting_text(facts: "Mapping[str, Any]") -> str:
    """Text report of substitutions: each one applied, and their predicted and measured gain."""
    if not facts["applied"]:
        return "substitutions: none should make it better"
    lines = [
        f"{each['times']:4} × {each['rule']}: {each['saved_us']} µs less predicted; "
        + (f"proved in {len(each['proof'])} steps" if each["proof"] else "no proof shipped")
        for each in facts["applied"]
    ]
    before, after = facts["predicted_us"]
    measured = facts["measured"]
    found = facts.get("error") or "not measured"
    if measured:
        found = "measured {:.2f} ({:.2f} to {:.2f})".format(*(1 / measured[key] for key in ("ratio", "high", "low")))
    lines += [
        "  without {}: {:.3f} of the time ({:.3f} to {:.3f})".format(name, *without.values())
        for name, without in facts.get("without", {}).items()
    ]
    kept = "kept" if facts["kept"] else "not kept"
    lines.append(f"substitutions: predicted {before / after:.2f} times as fast, {found}; {kept}")
    return "\n".join(lines)


def drawing(rule: "RewriteRule") -> str:
    """A rule's two sides as graphs, a line a node, side by side."""
    left, right = _nodes(rule.left), _nodes(rule.right)
    width = max(map(len, left))
    rows = [
        f"  {a:<{width}}  │ {b}".rstrip()
        for a, b in zip(left + [""] * (len(right) - len(left)), right + [""] * (len(left) - len(right)), strict=True)
    ]
    types = [f"  from {rule.origin}"] if rule.origin else []
    types += [f"  {name}: {declared}" for name, declared in rule.types.items()]
    where = [f"  where {condition}" for condition in rule.conditions]
    return "\n".join([rule.name, *types, *where, *rows])


def _nodes(outputs: tuple["Term", ...]) -> list[str]:
    """A line for each different application, arguments before their users, and one for the outputs."""
    from burnish.rewrite.language.terms import Apply, TermVariable, subterms

    names: dict[Term, str] = {}
    lines: list[str] = []
    for term in (t for output in outputs for t in subterms(output)):
        if term in names:
            continue
        if isinstance(term, TermVariable):
            names[term] = term.name
            continue
        names[term] = f"%{len(lines)}"
        attributes = str(Apply(term.word, (), term.attrs)).removeprefix(term.word)
        arguments = " ".join(names[a] for a in term.args)
        lines.append(f"{names[term]} = {term.word} {arguments} {attributes if term.attrs else ''}".rstrip())
    return [*lines, f"give {', '.join(names[t] for t in outputs)}"]
