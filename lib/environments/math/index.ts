export { type MathOptions, math } from "./environment.ts";
export { gradeMath } from "./grade.ts";
export type { MathProblem } from "./problems.ts";
