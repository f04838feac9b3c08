// Texts of errors: the value, what is allowed, and what to do.

/** An error whose message is for the user. */
export class Problem extends Error {}

/** Sends a request to the program. Returns its response and the body. */
export async function ask(path, options) {
  try {
    const response = await fetch(path, options);
    return [response, await response.text()];
  } catch {
    throw new Problem("The program does not answer. Start it again.");
  }
}

/** Returns the text of a problem. Another error is a mistake in the page: it stays in the console. */
export function textOf(error) {
  if (error instanceof Problem) return error.message;
  throw error;
}

/** Returns what is wrong with the first invalid field of a form, or an empty text. */
export function invalid(form) {
  const field = [...form.elements].find((field) => !field.closest("[hidden]") && !field.validity.valid);
  if (!field) return "";
  const name = field.dataset.name ?? field.closest("label").firstChild.textContent.trim().toLowerCase();
  const row = field.closest("li")?.querySelector(".name");
  const subject = row && row !== field ? `policy "${row.value}": ${name}` : name;
  // A number that the browser cannot read is an empty value.
  const value = field.value === "" ? " has no value" : field.type === "number" ? ` ${field.value}` : ` "${field.value}"`;
  const numbers = `a ${field.step === "any" ? "number" : "whole number"} from ${field.min} to ${field.max}`;
  return `${subject}${value}: enter ${field.type === "number" ? numbers : field.title}.`;
}
