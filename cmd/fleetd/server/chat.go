package server

import (
	"time"

	"fleetd/fleet/alert"
	"fleetd/fleet/call"
	"fleetd/fleet/webhook"
	"fleetd/web/i18n"
)

// chatTexts writes messages for chat services.
type chatTexts struct{ publicURL string }

func (c chatTexts) text(lang string, j webhook.Job) webhook.Text {
	l := i18n.Lang(lang)
	t := webhook.Text{Title: i18n.Text(l, "webhooks.event."+string(j.Event)), Open: i18n.Text(l, "chat.open")}
	switch j.Event {
	case webhook.Test:
		t.Title, t.Body = i18n.Text(l, "mail.test_subject"), i18n.Text(l, "chat.test", "url", c.publicURL)
	case webhook.ApprovalRequested, webhook.ApprovalDecided:
		a, err := j.Approval()
		if err != nil {
			return t
		}
		t.Body = i18n.Text(l, "chat.approval", "n", max(1, a.Targets), "actor", a.AskedBy.Name, "tool", a.Tool)
		switch {
		case a.State == call.ApprovalWaiting:
			if a.Purpose != "" {
				t.Body += "\n" + a.Purpose
			}
		case a.DecidedBy.Name != "":
			t.Body += "\n" + i18n.Text(l, "chat.decided", "state", i18n.Text(l, "approval.state."+string(a.State)), "actor",
				a.DecidedBy.Name)
		default:
			t.Body += "\n" + i18n.Text(l, "approval.state."+string(a.State))
		}
	default:
		a, err := j.Alert()
		if err != nil {
			return t
		}
		if j.Event == webhook.AlertOpened || j.Event == webhook.AlertWorsened {
			t.Title = i18n.Text(l, "chat.title", "event", t.Title, "severity", i18n.Text(l, "alert.severity."+string(a.Severity)))
		}
		t.Body = i18n.Because(l, time.UTC, "alert.what.", a.Reason())
		if a.State == alert.Acknowledged && j.Event == webhook.AlertAcknowledged {
			t.Body += "\n" + i18n.Text(l, "alert.acked_by") + " " + a.AckedBy.Name
			if a.Note != "" {
				t.Body += "\n" + a.Note
			}
		}
	}
	return t
}
