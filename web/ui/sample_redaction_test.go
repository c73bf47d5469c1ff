package ui_test

import (
	"github.com/a-h/templ"
	"github.com/google/uuid"

	"fleetd/fleet/redaction"
	"fleetd/web/ui"
)

func redactionPage() templ.Component {
	first := redaction.Rule{ID: uuid.NewSHA1(uuid.Max, []byte{1}), Tool: "self.wifi.*", Path: "$.networks[*].password",
		Note: hostile[0], Revision: 3, UpdatedBy: hostile[0], UpdatedAt: now}
	second := first
	second.ID, second.Tool, second.Note = uuid.NewSHA1(uuid.Max, []byte{2}), "self.door.open", ""
	return ui.RedactionPage{Rules: []redaction.Rule{first, second}, Form: ui.RedactionForm{ID: second.ID.String(),
		Tool: "x", Path: "$", Revision: 3}, Digest: "hmac-sha256:00112233445566778899aabbccddeeff"}.Page()
}
