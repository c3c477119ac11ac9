/** The longest delay of a timer, in milliseconds; a longer one fires at once. */
export const maxDelayMs = 2 ** 31 - 1;
