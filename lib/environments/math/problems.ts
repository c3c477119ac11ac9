/** A problem, and a small set of original ones, so that the environment runs without any data. */

export interface MathProblem {
  id: string;
  problem: string;
  /** The right answer, as in \boxed{}. */
  answer: string;
  solution?: string;
  subject?: string;
  /** 1 (easiest) to 5. */
  level?: number;
}

type Row = [problem: string, answer: string, subject: string, level: number];

const train: Row[] = [
  ["What is $17 \\cdot 6$?", "102", "Prealgebra", 1],
  [
    "What is $\\frac{3}{4} + \\frac{1}{6}$, as a fraction in lowest terms?",
    "\\frac{11}{12}",
    "Prealgebra",
    1,
  ],
  ["What is $25\\%$ of $84$?", "21", "Prealgebra", 1],
  [
    "A book has 240 pages. Nora reads 16 pages a day. How many days does she need for the whole book?",
    "15",
    "Prealgebra",
    1,
  ],
  ["Solve $3x - 7 = 20$ for $x$.", "9", "Algebra", 1],
  ["Solve $5(x + 2) = 3x + 22$ for $x$.", "6", "Algebra", 2],
  ["What is the greatest common divisor of 84 and 126?", "42", "Number Theory", 2],
  ["What is the least common multiple of 12 and 18?", "36", "Number Theory", 2],
  ["What is the remainder when $7^5$ is divided by 10?", "7", "Number Theory", 2],
  ["Write $(x + 4)(x - 3)$ as a polynomial in $x$.", "x^2 + x - 12", "Algebra", 2],
  ["Find both solutions of $x^2 - 5x + 6 = 0$, separated by a comma.", "2, 3", "Algebra", 2],
  ["A right triangle has legs of length 9 and 12. How long is its hypotenuse?", "15", "Geometry", 2],
  ["What is the area of a circle whose diameter is 10?", "25\\pi", "Geometry", 2],
  ["In how many orders can 5 different books stand on a shelf?", "120", "Counting & Probability", 2],
  [
    "Two fair dice are rolled. What is the probability that the sum is 7?",
    "\\frac{1}{6}",
    "Counting & Probability",
    3,
  ],
  [
    "In how many ways can 2 of 7 runners be chosen for a relay, regardless of order?",
    "21",
    "Counting & Probability",
    2,
  ],
  ["Simplify $\\sqrt{72}$.", "6\\sqrt{2}", "Algebra", 2],
  ["What is the sum of the whole numbers from 1 to 40?", "820", "Algebra", 3],
  ["A line goes through $(1, 2)$ and $(4, 11)$. What is its slope?", "3", "Algebra", 2],
  [
    "At which point do the lines $y = 2x + 1$ and $y = 7 - x$ meet? Give it as $(x, y)$.",
    "(2, 5)",
    "Algebra",
    3,
  ],
  ["For which $x$ is $2x + 3 < 11$? Answer with an interval.", "(-\\infty, 4)", "Algebra", 3],
  ["Let $f(x) = x^2 - 3x$. What is $f(-2)$?", "10", "Algebra", 2],
  ["What is $\\log_3 81$?", "4", "Intermediate Algebra", 2],
  ["What is $\\sin 30^\\circ + \\cos 60^\\circ$?", "1", "Precalculus", 2],
  ["Compute $(2 + 3i)(1 - i)$.", "5 + i", "Intermediate Algebra", 3],
  ["What is the units digit of $3^{14}$?", "9", "Number Theory", 3],
  ["How many positive divisors does 60 have?", "12", "Number Theory", 3],
  ["Write the number 25 in base 2. Give the digits only.", "11001", "Number Theory", 3],
  ["A shirt costs \\$40. After a discount of 15%, what does it cost in dollars?", "34", "Prealgebra", 2],
  [
    "The mean of four numbers is 11. Three of them are 8, 10 and 15. What is the fourth?",
    "11",
    "Prealgebra",
    2,
  ],
  ["What is the vertex of the parabola $y = (x - 3)^2 + 4$? Give it as $(x, y)$.", "(3, 4)", "Algebra", 3],
  ["The interior angles of a regular hexagon are all equal. How many degrees is each?", "120", "Geometry", 2],
];

const test: Row[] = [
  ["What is $23 \\cdot 7$?", "161", "Prealgebra", 1],
  ["What is $\\frac{5}{6} - \\frac{1}{4}$, as a fraction in lowest terms?", "\\frac{7}{12}", "Prealgebra", 1],
  ["Solve $4x + 9 = 33$ for $x$.", "6", "Algebra", 1],
  ["Find both solutions of $x^2 - x - 12 = 0$, separated by a comma.", "-3, 4", "Algebra", 2],
  ["A rectangle is 8 wide and 15 long. How long is its diagonal?", "17", "Geometry", 2],
  ["What is the remainder when $2^{10}$ is divided by 7?", "2", "Number Theory", 3],
  ["Simplify $\\sqrt{98}$.", "7\\sqrt{2}", "Algebra", 2],
  ["In how many ways can 3 of 8 players be chosen, regardless of order?", "56", "Counting & Probability", 2],
  [
    "A fair coin is tossed three times. What is the probability of exactly two heads?",
    "\\frac{3}{8}",
    "Counting & Probability",
    3,
  ],
  ["Write $(2x - 1)(x + 5)$ as a polynomial in $x$.", "2x^2 + 9x - 5", "Algebra", 2],
  ["What is $\\log_2 32$?", "5", "Intermediate Algebra", 2],
  [
    "At which point do the lines $y = x + 3$ and $y = 9 - 2x$ meet? Give it as $(x, y)$.",
    "(2, 5)",
    "Algebra",
    3,
  ],
];

const problems = (rows: readonly Row[], split: string): MathProblem[] =>
  rows.map(([problem, answer, subject, level], i) => ({
    id: `own/${split}/${i}`,
    problem,
    answer,
    subject,
    level,
  }));

export const ownProblems = { train: problems(train, "train"), test: problems(test, "test") };
