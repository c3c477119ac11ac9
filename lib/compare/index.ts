/** `nlac/compare`: comparisons of methods, which `nlac compare` runs. */

export { type Comparison, type ComparisonInput, defineComparison, loadComparison } from "./comparison.ts";
