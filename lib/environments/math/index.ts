export { type MathOptions, type MathProblem, math } from "./environment.ts";
export { gradeMath } from "./grade.ts";
