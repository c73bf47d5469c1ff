package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/heavy"
	"fleetd/fleet/publish"
	"fleetd/fleet/record"
	"fleetd/web/access"
	"fleetd/web/i18n"
	"fleetd/web/request"
)

func (a *api) registerRecord() {
	register(a, operation{id: "get-record", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/log", role: fleet.RoleViewer,
		summary: "Show the state of the sealed record",
		about: "Calls, audit entries, connections, changes of firmware and steps of campaigns form one log, in a Merkle tree " +
			"(RFC 6962) that fleetd signs each second."}, a.getRecord)
	register(a, operation{id: "start-verification", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/audit/verify", role: fleet.RoleAdmin,
		summary: "Verify the sealed record",
		about: "Starts a verification of all rows, the log and its checkpoints, and answers at once; get-verification shows " +
			"the result. One runs at a time."}, a.startVerification)
	register(a, operation{id: "get-verification", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/verify", role: fleet.RoleViewer,
		summary: "Show the verification that runs, or else the last one",
		about:   "The result is kept until fleetd stops; its summary stays in the audit, as record.verify."}, a.getVerification)
	register(a, operation{id: "get-checkpoint", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/log/checkpoint", role: fleet.RoleViewer,
		summary: "Get the latest checkpoint of the sealed record",
		about:   "A signed note (C2SP tlog-checkpoint). Kept in another place, it shows later whether the log was replaced.",
		more:    plainBytes("The signed note", "text/plain; charset=utf-8")}, a.getCheckpoint)
	register(a, operation{id: "get-tile", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/log/tiles/{level}/{n}", role: fleet.RoleViewer,
		summary: "Get the hashes of a tile of the sealed record",
		about:   "256 hashes, or the width (C2SP tlog-tiles).",
		more:    plainBytes("Hashes of 32 bytes each", "application/octet-stream")}, a.getTile)
	register(a, operation{id: "get-bundle", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/log/entries/{n}", role: fleet.RoleAdmin,
		summary: "Get 256 entries of the sealed record",
		about: "The lines of the entries, each after its length in 16 bits (C2SP tlog-tiles). Refused if a row was removed, " +
			"for example after its retention.",
		more: plainBytes("Entries", "application/octet-stream")}, a.getBundle)
	register(a, operation{id: "stream-record", reach: access.Fleet, models: fleet.ModelsNever, heavy: heavy.Export,
		method: http.MethodGet, path: "/audit/log/lines", role: fleet.RoleAdmin,
		summary: "Stream the entries of the sealed record, in its order",
		about: "From a number to the latest checkpoint, an object on each line: number, kind, subject, at, and line, the sealed " +
			"line, which is null after its row was removed. Ask again with the number after the last one to continue: nothing is " +
			"left out, and the numbers have no gaps.",
		more: plainBytes("The entries", audit.NDJSON.MediaType())}, a.streamRecord)
	register(a, operation{id: "prove-entry", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/audit/log/proofs/{entry}", role: fleet.RoleViewer,
		summary: "Prove that the sealed record contains an entry",
		about: "A file (C2SP tlog-proof) with the line of the entry, that can be checked without a server: " +
			"fleetd audit check. The entry is a number in the log, or the id of a call or an audit entry.",
		more: plainBytes("The proof", "text/plain; charset=utf-8")}, a.proveEntry)
}

// plainBytes describes a response that is not JSON.
func plainBytes(about, mediaType string) func(*huma.Operation) {
	return func(h *huma.Operation) {
		content := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
		h.Responses = map[string]*huma.Response{"200": {Description: about,
			Content: map[string]*huma.MediaType{mediaType: content}}}
	}
}

type recordView struct {
	Origin     string                `json:"origin" doc:"Name of the log"`
	Key        string                `json:"key" doc:"Public key that signs checkpoints, for fleetd audit check --key"`
	Entries    int64                 `json:"entries" doc:"In the log, as of the latest checkpoint"`
	Root       string                `json:"root" doc:"Root of the tree in base64; empty for an empty log"`
	SealedAt   *time.Time            `json:"sealed_at" doc:"Time of the latest checkpoint"`
	Term       int                   `json:"term" doc:"Term of the leader that signed it"`
	Queued     int64                 `json:"queued" doc:"Transactions whose entries wait for the next checkpoint"`
	QueuedFrom *time.Time            `json:"queued_from" doc:"Time of the oldest of them"`
	Sealing    bool                  `json:"sealing" doc:"False if the last attempt to seal failed; the entries wait"`
	Places     []checkpointPlaceView `json:"places" nullable:"false" doc:"Places outside of the database, and witnesses, that get the checkpoints"`
}

type checkpointPlaceView struct {
	Kind    publish.Kind `json:"kind" enum:"directory,s3,webhook,witness"`
	To      string       `json:"to" doc:"Directory, bucket, host or name of the witness"`
	Entries int64        `json:"entries" doc:"Of the latest checkpoint that it took from this process"`
	At      *time.Time   `json:"at" doc:"When it took it"`
	Since   *time.Time   `json:"failing_since" doc:"null if the last attempt succeeded"`
	Code    string       `json:"code,omitempty" doc:"Why it fails"`
	Message string       `json:"message,omitempty"`
	Params  fleet.Params `json:"params,omitempty"`
}

func checkpointPlace(s publish.State) checkpointPlaceView {
	v := checkpointPlaceView{Kind: s.Kind, To: s.To, Entries: s.Size, Code: s.Why.Code, Params: s.Why.Params}
	if s.Size > 0 {
		v.At = ptr(utc(s.At))
	}
	if !s.Since.IsZero() {
		v.Since = ptr(utc(s.Since))
		v.Message = i18n.Because(i18n.English, time.UTC, "record.place.", s.Why)
	}
	return v
}

func (a *api) getRecord(ctx context.Context, _ fleet.Principal, _ *empty) (*answer[recordView], error) {
	queued, since, err := a.Record.Queue(ctx)
	if err != nil {
		return nil, err
	}
	s := a.Record.Status()
	v := recordView{Origin: s.Origin, Key: s.Verifier, Entries: s.Latest.Size, Term: s.Latest.Term, Queued: queued,
		Sealing: s.Err == nil, Places: []checkpointPlaceView{}}
	for _, state := range a.Publisher.States() {
		v.Places = append(v.Places, checkpointPlace(state))
	}
	if s.Latest.Size > 0 {
		at := utc(s.Latest.At)
		v.Root, v.SealedAt = s.Latest.Root.String(), &at
	}
	if queued > 0 {
		since = utc(since)
		v.QueuedFrom = &since
	}
	return &answer[recordView]{v}, nil
}

type verificationInput struct {
	Body struct {
		Checkpoints []string `json:"checkpoints,omitempty" maxItems:"100" doc:"Signed checkpoints that were kept in another place: the log must be their continuation"`
	}
}

type findingView struct {
	Problem record.Problem `json:"problem" enum:"changed,removed,inserted,twice,log_changed,moved,cut_off,checkpoint_changed,replaced,start_changed"`
	Entry   int64          `json:"entry" doc:"Number of the entry in the log; -1 if it is not there"`
	Until   int64          `json:"until" doc:"If the problem is between two checkpoints: the number after the last entry that it may concern; otherwise 0"`
	Kind    string         `json:"kind" doc:"Kind of the entry; empty if the problem is the log's"`
	Subject string         `json:"subject" doc:"Id of the row, or its device"`
	At      *time.Time     `json:"at,omitempty" doc:"When the row was created; or the time of the checkpoint"`
}

type verificationView struct {
	State       string        `json:"state" enum:"running,sound,unsound,failed"`
	StartedAt   time.Time     `json:"started_at"`
	By          actorView     `json:"by"`
	Checked     int64         `json:"checked" doc:"Entries that were checked"`
	Total       int64         `json:"total" doc:"Entries of the log at the start"`
	DurationMs  int64         `json:"duration_ms"`
	Checkpoints int           `json:"checkpoints" doc:"Checkpoints whose signature and root were checked"`
	Removed     int64         `json:"removed" doc:"Entries whose rows fleetd removed, mostly after their retention: their hashes were checked"`
	Root        string        `json:"root" doc:"Root of the latest checkpoint; empty until the end"`
	Findings    []findingView `json:"findings" nullable:"false" doc:"The first is the one of the first entry; at most 100"`
	More        int64         `json:"more" doc:"Further findings"`
}

func (a *api) startVerification(ctx context.Context, by fleet.Principal, in *verificationInput) (
	*answer[verificationView], error) {
	if err := a.Record.StartVerification(by, in.Body.Checkpoints); err != nil {
		return nil, err
	}
	return a.getVerification(ctx, by, nil)
}

func (a *api) getVerification(context.Context, fleet.Principal, *empty) (*answer[verificationView], error) {
	v, ok := a.Record.Verification()
	if !ok {
		return nil, fleet.Refuse(fleet.ErrNotFound, "no_verification")
	}
	out := verificationView{State: "running", StartedAt: utc(v.Began), By: actor(v.By), Checked: v.Entries, Total: v.Total,
		Findings: []findingView{}}
	if !v.Done {
		return &answer[verificationView]{out}, nil
	}
	r := v.Report
	switch {
	case v.Err != nil:
		out.State = "failed"
	case r.Sound():
		out.State = "sound"
	default:
		out.State = "unsound"
	}
	out.Checked, out.DurationMs, out.Checkpoints, out.Removed, out.More = r.Entries, r.Took.Milliseconds(), r.Checked,
		r.Missing, r.More
	if r.Latest.Size > 0 {
		out.Root = r.Latest.Root.String()
	}
	for _, f := range r.Findings {
		view := findingView{Problem: f.Problem, Entry: f.Entry, Until: f.End, Subject: f.Subject()}
		if f.Kind != 0 {
			view.Kind = f.Kind.String()
		}
		if !f.At.IsZero() {
			at := utc(f.At)
			view.At = &at
		}
		out.Findings = append(out.Findings, view)
	}
	return &answer[verificationView]{out}, nil
}

func (a *api) getCheckpoint(ctx context.Context, _ fleet.Principal, _ *empty) (*fileOutput, error) {
	c, err := a.Record.Checkpoint(ctx)
	if err != nil {
		return nil, err
	}
	return textFile(fmt.Sprintf("checkpoint-%d.txt", c.Size), []byte(c.Note)), nil
}

func textFile(name string, data []byte) *fileOutput {
	return &fileOutput{"text/plain; charset=utf-8", `attachment; filename="` + name + `"`, "no-store", data}
}

type tileInput struct {
	Level int   `path:"level" minimum:"0" maximum:"7"`
	N     int64 `path:"n" minimum:"0"`
	Width int   `query:"width" minimum:"1" maximum:"256" default:"256" doc:"Number of hashes of a partial tile"`
}

func (a *api) getTile(ctx context.Context, _ fleet.Principal, in *tileInput) (*fileOutput, error) {
	data, err := a.Record.Tile(ctx, in.Level, in.N, in.Width)
	if err != nil {
		return nil, err
	}
	return &fileOutput{"application/octet-stream", "attachment", "no-store", data}, nil
}

type bundleInput struct {
	N     int64 `path:"n" minimum:"0"`
	Width int   `query:"width" minimum:"1" maximum:"256" default:"256" doc:"Number of entries of a partial bundle"`
}

func (a *api) getBundle(ctx context.Context, _ fleet.Principal, in *bundleInput) (*fileOutput, error) {
	data, err := a.Record.Bundle(ctx, in.N, in.Width)
	if err != nil {
		return nil, err
	}
	return &fileOutput{"application/octet-stream", "attachment", "no-store", data}, nil
}

type linesInput struct {
	From int64 `query:"from" minimum:"0" doc:"Number of the first entry; the number of entries in the log answers with none"`
}

func (a *api) streamRecord(ctx context.Context, _ fleet.Principal, in *linesInput) (*huma.StreamResponse, error) {
	stream, err := a.Record.Stream(ctx, in.From)
	if err != nil {
		return nil, err
	}
	return writeStream(audit.NDJSON.MediaType(), "record.ndjson", func(w http.ResponseWriter) error {
		return stream.Write(ctx, w, request.Progress(w))
	}), nil
}

// writeStream answers with a file of any length.
func writeStream(mediaType, name string, write func(http.ResponseWriter) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(c huma.Context) {
		_, w := humachi.Unwrap(c)
		h := w.Header()
		h.Set("Content-Type", mediaType)
		h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
		h.Set("Cache-Control", "no-store")
		if err := write(w); err != nil {
			panic(http.ErrAbortHandler) // otherwise the file would seem complete
		}
	}}
}

type proofInput struct {
	Entry string `path:"entry" maxLength:"40" doc:"Number of the entry in the log, or the id of a call or an audit entry"`
}

func (a *api) proveEntry(ctx context.Context, _ fleet.Principal, in *proofInput) (*fileOutput, error) {
	entry, err := strconv.ParseInt(in.Entry, 10, 64)
	if err != nil {
		id, err := uuid.Parse(in.Entry)
		if err != nil {
			return nil, fleet.Refuse(fleet.ErrInvalid, "invalid_entry", "value", in.Entry).At("entry")
		}
		numbers, err := a.Record.Entries(ctx, id)
		if err != nil {
			return nil, err
		}
		entry = numbers[0]
	}
	p, err := a.Record.Prove(ctx, entry)
	if err != nil {
		return nil, err
	}
	return textFile(fmt.Sprintf("entry-%d.tlog-proof", entry), p.Format()), nil
}
