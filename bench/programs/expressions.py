"""Evaluates two expressions with one library, as often as it is told: expressions.py LIBRARY.

Each line of standard input is a workload and a number of calls; each line of output the seconds
that each of these calls took.
"""

import json
import sys
import time

INPUT = {
    "order": {"total": 120.5, "currency": "EUR", "lines": 3},
    "customer": {"name": "Ada", "country": "DE", "tags": ["new", "eu"]},
}
CEL = {
    "condition": "input.order.total > 100.0 && input.customer.country in ['DE', 'FR']",
    "mapping": "{'name': input.customer.name, 'tags': input.customer.tags.map(t, t + '!'), "
    "'gross': input.order.total * 1.19}",
}
PYTHON = {
    "condition": "input['order']['total'] > 100.0 and input['customer']['country'] in ['DE', 'FR']",
    "mapping": "{'name': input['customer']['name'], "
    "'tags': [t + '!' for t in input['customer']['tags']], "
    "'gross': input['order']['total'] * 1.19}",
}
EXPECTED = {
    "condition": True,
    "mapping": {"name": "Ada", "tags": ["new!", "eu!"], "gross": 120.5 * 1.19},
}


def stockade():
    from stockade.executor.expression import ExpressionEngine

    engine = ExpressionEngine()

    def prepare(name):
        # As a caller does: found again by its source, each time.
        return lambda: engine.compile(CEL[name], tenant="bench").evaluate(INPUT)

    return prepare


def cel_expr_python():
    from cel_expr_python import cel

    environment = cel.NewEnv(variables={"input": cel.Type.DYN})

    def prepare(name):
        expression = environment.compile(CEL[name])
        return lambda: expression.eval(data={"input": INPUT}).plain_value()

    return prepare


def common_expression_language():
    import cel

    def prepare(name):
        program = cel.compile(CEL[name])
        return lambda: program.execute({"input": INPUT})

    return prepare


def cel_python():
    import celpy
    from celpy.adapter import CELJSONEncoder

    environment = celpy.Environment()

    def prepare(name):
        program = environment.program(environment.compile(CEL[name]))
        to_python = CELJSONEncoder.to_python
        return lambda: to_python(program.evaluate({"input": celpy.json_to_cel(INPUT)}))

    return prepare


def simpleeval():
    from simpleeval import EvalWithCompoundTypes

    def prepare(name):
        evaluator = EvalWithCompoundTypes(names={"input": INPUT})
        parsed = evaluator.parse(PYTHON[name])
        return lambda: evaluator.eval(PYTHON[name], previously_parsed=parsed)

    return prepare


def python():
    def prepare(name):
        code = compile(PYTHON[name], "<expression>", "eval")
        return lambda: eval(code, {"input": INPUT})

    return prepare


def main():
    prepare = globals()[sys.argv[1]]()
    calls = {name: prepare(name) for name in CEL}
    for name, call in calls.items():
        if call() != EXPECTED[name]:
            sys.exit(f"{name}: {call()!r}")
    clock = time.perf_counter
    for line in sys.stdin:
        name, count = line.split()
        call, seconds = calls[name], []
        for _ in range(int(count)):
            began = clock()
            call()
            seconds.append(clock() - began)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
