/** Complex numbers in double precision: principal values, and the real root where a person means it. */

export interface Complex {
  re: number;
  im: number;
}

export const real = (re: number): Complex => ({ re, im: 0 });
export const imaginaryUnit: Complex = { re: 0, im: 1 };

export const add = (a: Complex, b: Complex): Complex => ({ re: a.re + b.re, im: a.im + b.im });
export const subtract = (a: Complex, b: Complex): Complex => ({ re: a.re - b.re, im: a.im - b.im });
export const multiply = (a: Complex, b: Complex): Complex => ({
  re: a.re * b.re - a.im * b.im,
  im: a.re * b.im + a.im * b.re,
});
export function divide(a: Complex, b: Complex): Complex {
  const scale = b.re * b.re + b.im * b.im;
  return { re: (a.re * b.re + a.im * b.im) / scale, im: (a.im * b.re - a.re * b.im) / scale };
}
export const magnitude = (a: Complex): number => Math.hypot(a.re, a.im);
export const exp = (a: Complex): Complex => ({
  re: Math.exp(a.re) * Math.cos(a.im),
  im: a.im === 0 ? 0 : Math.exp(a.re) * Math.sin(a.im),
});
export const log = (a: Complex): Complex => ({ re: Math.log(magnitude(a)), im: Math.atan2(a.im, a.re) });

export function power(a: Complex, b: Complex): Complex {
  if (a.re === 0 && a.im === 0) return real(b.re === 0 && b.im === 0 ? 1 : b.re > 0 ? 0 : Number.NaN);
  if (b.im === 0 && Number.isInteger(b.re) && Math.abs(b.re) <= 64) {
    let result = real(1);
    for (let i = 0; i < Math.abs(b.re); i++) result = multiply(result, a);
    return b.re < 0 ? divide(real(1), result) : result;
  }
  if (a.im === 0 && a.re > 0 && b.im === 0) return real(a.re ** b.re);
  return exp(multiply(b, log(a)));
}

/** The n-th root; of a negative real with odd n the real one. */
export function root(a: Complex, n: Complex): Complex {
  if (a.im === 0 && n.im === 0 && Number.isInteger(n.re) && n.re !== 0) {
    if (a.re >= 0)
      return real(n.re === 2 ? Math.sqrt(a.re) : n.re === 3 ? Math.cbrt(a.re) : a.re ** (1 / n.re));
    if (n.re % 2 !== 0) return real(n.re === 3 ? Math.cbrt(a.re) : -((-a.re) ** (1 / n.re)));
    if (n.re === 2) return { re: 0, im: Math.sqrt(-a.re) };
  }
  return power(a, divide(real(1), n));
}

const half = real(0.5);

export function sin(a: Complex): Complex {
  return { re: Math.sin(a.re) * Math.cosh(a.im), im: Math.cos(a.re) * Math.sinh(a.im) };
}
export function cos(a: Complex): Complex {
  return { re: Math.cos(a.re) * Math.cosh(a.im), im: -Math.sin(a.re) * Math.sinh(a.im) };
}
export const tan = (a: Complex): Complex => divide(sin(a), cos(a));
export const sinh = (a: Complex): Complex => multiply(half, subtract(exp(a), exp(subtract(real(0), a))));
export const cosh = (a: Complex): Complex => multiply(half, add(exp(a), exp(subtract(real(0), a))));

export function arcsin(a: Complex): Complex {
  if (a.im === 0 && Math.abs(a.re) <= 1) return real(Math.asin(a.re));
  const inner = add(multiply(imaginaryUnit, a), root(subtract(real(1), multiply(a, a)), real(2)));
  return multiply({ re: 0, im: -1 }, log(inner));
}
export const arccos = (a: Complex): Complex =>
  a.im === 0 && Math.abs(a.re) <= 1 ? real(Math.acos(a.re)) : subtract(real(Math.PI / 2), arcsin(a));
export function arctan(a: Complex): Complex {
  if (a.im === 0) return real(Math.atan(a.re));
  const turned = multiply(imaginaryUnit, a);
  return multiply({ re: 0, im: 0.5 }, subtract(log(subtract(real(1), turned)), log(add(real(1), turned))));
}
