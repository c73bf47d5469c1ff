package ui

import (
	"context"

	"fleetd/fleet/publish"
	"fleetd/fleet/record"
)

// Addresses of the sealed record.
const (
	PathRecord           = PathAudit + "/record"         // GET; POST starts a verification
	PathRecordCheckpoint = PathRecord + "/checkpoint"    // GET: the signed note
	recordProof          = PathRecord + "/proof/"        // GET + entry: the proof
	PathRecordProof      = PathRecord + "/proof/{entry}" // number of an entry, or the id of a row
)

// A RecordPage shows the state of the sealed record and its verification: GET [PathRecord].
type RecordPage struct {
	Status       record.Status
	Queued       int64
	Verification *record.Verification // nil before the first
	Problem      string               // why no verification was started, in the page's language
	Places       []RecordPlace
}

// A RecordPlace is a place outside of the database, or a witness, that gets the checkpoints.
type RecordPlace struct {
	publish.State
	Why string // why it fails, in the page's language; "" if it does not
}

// A RecordLine is the summary of the sealed record on the page of the audit.
type RecordLine struct {
	Status       record.Status
	Verification *record.Verification
}

func (v RecordLine) unsound() bool {
	return v.Verification != nil && v.Verification.Done && v.Verification.Err == nil && !v.Verification.Report.Sound()
}

// recordPlace returns where the finding is in the log; "" if it is not there.
func recordPlace(ctx context.Context, f record.Finding) string {
	switch {
	case f.Entry < 0:
		return ""
	case f.End > 0:
		return t(ctx, "record.between", "n", f.Entry, "end", f.End)
	}
	return t(ctx, "record.at_entry", "n", f.Entry)
}
