// The signed-out state: a person pastes a token once.
import { h, show } from "./dom.js";
import { session, signIn } from "./api.js";

export function drawSignIn(container, { reason, done }) {
  const draw = (problem, waiting) => show(container,
    h("section", { class: "card signin", "aria-labelledby": "signin-title" },
      h("h1", { id: "signin-title" }, "Sign in"),
      reason ? h("p", { class: "banner warn" }, reason) : null,
      h("p", null, "Paste a token of this service. It is exchanged for a session of this browser and not stored by the page."),
      h("form", { id: "signin", autocomplete: "off" },
        h("label", { for: "token" }, "Token"),
        h("input", { id: "token", name: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false",
          "aria-describedby": "token-help token-problem" }),
        h("p", { id: "token-help", class: "quiet" }, "An operator finds the token that the service created in the file admin.token of its state folder."),
        h("p", { id: "token-problem", class: "problem", role: "alert" }, problem),
        h("p", { class: "buttons" },
          h("button", { class: "main", type: "submit", disabled: waiting }, waiting ? "Signing in …" : "Sign in"),
          session.provider ? h("a", { class: "button", id: "provider", href: session.provider.url }, `Sign in with ${session.provider.name}`) : null))));
  draw("", false);
  const field = document.getElementById("token");
  field.focus();
  document.getElementById("signin").addEventListener("submit", async (event) => {
    event.preventDefault();
    draw("", true);
    try {
      await signIn(field.value.trim());
      field.value = "";
      done();
    } catch (error) {
      draw(`Sign-in failed: ${error.message}`, false);
      field.focus();
      field.select();
    }
  });
}
