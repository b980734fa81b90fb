"""Runs each benchmark that needs no network, once and small: that it still works, and is not ten times slower than
its target or than what docs/benchmarks.md shows. Busy machines stay far below that.
    usage: scripts/bench_smoke.py [build/release/bin]
"""
import json
import pathlib
import re
import subprocess
import sys

bin_folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/release/bin")
mistakes = []


def run(*command):
    done = subprocess.run([str(bin_folder / command[0]), *command[1:]], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        mistakes.append(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if done.returncode == 0 else ""


def check(name, value, unit, least=0.0, most=float("inf")):
    good = least <= value <= most
    print(f"{'ok ' if good else 'BAD'} {name}: {value:.3g} {unit} ({f'at least {least}' if least else f'at most {most}'})")
    if not good:
        mistakes.append(f"{name}: {value:.3g} {unit}")


def google_benchmark(program, limits):
    """`limits` by name: the most milliseconds, of the processor where others' work is not waited for."""
    names = "|".join(limits)
    text = run(program, f"--benchmark_filter=^({names})$", "--benchmark_min_time=0.02", "--benchmark_format=json")
    results = {one["name"]: one for one in json.loads(text)["benchmarks"]} if text else {}
    for name, most in limits.items():
        one = results.get(name)
        if one is None or one.get("error_occurred"):
            mistakes.append(f"{program}: no result of {name}: {one}")
        else:
            check(f"{program} {name}", min(one["real_time"], one["cpu_time"]), one["time_unit"], most=most)
    return results


google_benchmark("plan_bench", {"make_plan/200000": 400, "p2p_plan/100000/1": 200, "p2p_plan/100000/4": 200})
google_benchmark("metas_bench", {"encode_decode_and_build": 1000})
google_benchmark("control_bench", {"barrier_of_local_ranks/8/process_time/real_time": 10, "abort_reaches_8_ranks/manual_time": 10})

text = run("safetensors_bench", "--benchmark_filter=ratio_to_simdjson_walk", "--benchmark_format=json")
if text:
    check("safetensors_bench, of simdjson's walk", json.loads(text)["benchmarks"][0]["ratio"], "x", most=20)
text = run("digest_bench", "--benchmark_filter=^(digest_sum|digest_copy)$", "--benchmark_min_time=0.02", "--benchmark_format=json")
for one in json.loads(text)["benchmarks"] if text else ():
    check(f"digest_bench {one['name']}", one["bytes_per_second"] / 1e9, "GB/s", least=1.2)

run("registration_bench", "--size", "256MiB", "--rounds", "2", "--target", "11.5")
text = run("host_update", "--bytes", "256MiB", "--updates", "1")
ratios = re.findall(r"^(?:not )?verified +[\d.]+ +([\d.]+)", text, re.M)
if text and len(ratios) != 2:
    mistakes.append(f"host_update printed something else:\n{text}")
for what, ratio in zip(("not verified", "verified"), ratios):
    check(f"host_update, {what}, of memcpy", float(ratio), "x", least=0.07)

if mistakes:
    print("\n".join(["", *mistakes]))
    sys.exit(1)
