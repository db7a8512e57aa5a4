/* What the agent can prove of its own confinement, from the inside: facts, no judgement. */
#ifndef STOCKADE_RECEIPT_H
#define STOCKADE_RECEIPT_H

#include "json.h"

/* Adds {"version": 1, "receipt": {...}}. */
void receipt_add(struct json *json, int process);

#endif
