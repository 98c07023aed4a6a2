// The lab's words, each with its meaning, so that form, answers and run say the same.

export const POLICIES = {
  reserved: {
    name: "Contiguous",
    long: "contiguous: reserve max_tokens",
    meaning: "One run of neighbouring slots a request, as long as its prompt and the max_tokens that it declares.",
  },
  oracle: {
    name: "Oracle",
    long: "oracle: knows the true length",
    meaning: "One run of neighbouring slots, exactly as long as the request will need. Nobody can know that; it is a yardstick.",
  },
  paged: {
    name: "Paged",
    long: "paged: blocks on demand",
    meaning: "Small blocks anywhere, each taken when a token needs it, and a table that says where they are.",
  },
  pow2: {
    name: "Contiguous",
    long: "contiguous, a power of two",
    meaning: "One run of neighbouring slots, rounded up to a power of two.",
  },
};
export const policyName = (policy) => POLICIES[policy]?.name ?? policy;

export const TERMS = {
  sequences: ["Sequences at once", "Requests that hold memory and get one token each in every step."],
  tokens: ["Tokens a step", "Tokens generated in a step and not thrown away later: what the pool's users get."],
  slowed: ["With the slower kernel", "The same, after the paged kernel's penalty: looking each block up takes time."],
  effective: ["Effective", "Of the slots that are held, those that hold a token."],
  written: ["Written", "Slots that hold a token."],
  reserved: ["Reserved", "Slots held for tokens that may still come: of use later, of use to nobody now."],
  internal: ["Internal waste", "Slots inside a request's memory that it will never fill: over-declared, rounded up, the rest of a block."],
  external: ["External waste", "Free slots that the next request cannot use, because they lie scattered."],
  empty: ["Held and empty", "Memory that is held and holds no token."],
  preemptions: ["Preemptions", "How often a running request lost its memory to an older one and had to start again."],
  discarded: ["Discarded tokens", "Generated tokens that a preemption threw away."],
  blocked: ["Steps blocked", "Steps in which the next request was kept out although enough slots were free: they lay scattered."],
  table: ["Block table", "The table that says where each block is, for 128 sequences of 40,960 tokens."],
  shared: ["Shared of each prompt", "Tokens of the system prompt that lie in full blocks, so that all requests can share them."],
};

/** 26,909.07 -> "26.3 GiB"; 101.02 -> "101 MiB". */
export function mebibytes(value) {
  if (!Number.isFinite(value)) return "–";
  return value >= 1024 ? `${(value / 1024).toFixed(1)} GiB` : `${value >= 100 ? value.toFixed(0) : Number(value.toFixed(2))} MiB`;
}
