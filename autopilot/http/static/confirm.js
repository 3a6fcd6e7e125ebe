// A question before something acts. The dialog keeps what the person saw; the page behind it goes on.
import { h, show } from "./dom.js";

const dialog = document.getElementById("dialog");

// `act` returns the words of the result, or throws. Resolves once the dialog is closed, with true when it acted.
// `fields` are choices: each has a name, a label and its options as [value, words]; `act` gets the values by name.
export function confirmed({ title, lines, verb, tone, act, fields = [] }) {
  return new Promise((resolve) => {
    let acted = false;
    let busy = false;
    const body = (result, failed, waiting) => show(dialog,
      h("h2", { id: "dialog-title" }, title),
      lines.map((line, place) => h("p", { "data-key": `line-${place}` }, line)),
      acted || failed ? null : fields.map((each) => h("label", { class: "choice", "data-key": `field-${each.name}` }, `${each.label} `,
        h("select", { name: each.name, disabled: waiting }, each.options.map(([value, text]) => h("option", { value }, text))))),
      h("p", { class: `result${failed ? " bad" : ""}`, role: "status", "data-key": "result" }, result),
      h("div", { class: "buttons", "data-key": "buttons" },
        acted || failed ? null : h("button", { type: "button", class: `main ${tone || ""}`, "data-do": "yes", "data-key": "yes", disabled: waiting },
          waiting ? "Sending …" : verb),
        h("button", { type: "button", "data-do": "no", "data-key": "no" }, acted || failed ? "Close" : "Cancel")));
    const close = () => dialog.close();
    const press = async (event) => {
      const what = event.target.closest("button")?.dataset.do;
      if (what === "no") close();
      if (what !== "yes" || busy) return;
      busy = true;
      const values = Object.fromEntries(fields.map((each) => [each.name, dialog.querySelector(`[name=${each.name}]`).value]));
      body("", false, true);
      try {
        const words = await act(values);
        acted = true;
        body(words, false, false);
      } catch (error) { body(error.message, true, false); }
      busy = false;
      dialog.querySelector("[data-do=no]").focus();
    };
    dialog.addEventListener("click", press);
    dialog.addEventListener("close", () => {
      dialog.removeEventListener("click", press);
      resolve(acted);
    }, { once: true });
    show(dialog);
    body("", false, false);
    dialog.showModal();
    dialog.querySelector("[data-do=no]").focus();
  });
}
