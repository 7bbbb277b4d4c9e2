// A file may be dropped anywhere on a form that takes files.
for (const kind of ["dragover", "drop"])
  addEventListener(kind, (event) => {
    const field = event.target.closest?.("form")?.querySelector("[type=file]");
    if (!field || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    if (kind === "dragover") return;
    const files = new DataTransfer();
    for (const file of [...field.files, ...event.dataTransfer.files]) files.items.add(file);
    field.files = files.files;
  });

// A draft outlives an error, in its tab, until a message was sent.
const form = document.querySelector("[data-draft]");
try {
  if (/[?&]sent=/.test(location.search)) delete sessionStorage.drafts;
  if (form) {
    const drafts = JSON.parse(sessionStorage.drafts ?? "{}"), typed = (drafts[form.dataset.draft] ??= {});
    for (const field of form.querySelectorAll("[name=others], [name=subject], [name=body]")) field.value ||= typed[field.name] ?? "";
    form.oninput = ({ target }) => {
      typed[target.name] = target.value;
      sessionStorage.drafts = JSON.stringify(drafts);
    };
  }
} catch {}
