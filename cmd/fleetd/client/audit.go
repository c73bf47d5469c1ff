package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet/record"
)

type AuditCommand struct {
	Status     auditStatus     `cmd:"" default:"withargs" help:"Show the state of the sealed record (the default)."`
	Verify     auditVerify     `cmd:"" help:"Verify the sealed record: compare all rows with the log and its checkpoints."`
	Checkpoint auditCheckpoint `cmd:"" help:"Print the latest checkpoint. Keep it in another place, and verify --against it later."`
	Prove      auditProve      `cmd:"" help:"Write a proof that the sealed record contains an entry."`
	Check      auditCheck      `cmd:"" help:"Check a proof, without a server."`
	Entries    auditEntries    `cmd:"" help:"Write entries of the audit log, newest first: changes, and with --kind calls, connections and more."`
	Follow     auditFollow     `cmd:"" help:"Append every entry of the sealed record to a file, and go on: for a log shipper. Needs a token of role admin."`
	Export     auditExport     `cmd:"" help:"Write the log as files that any client of tlog-tiles reads."`
}

type auditStatus struct{ clientFlags }

func (c *auditStatus) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/audit/log", nil)
	if err != nil || !c.human() {
		return printed(answer, err)
	}
	var v Record
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("the server's answer is not the state of a record: %w", err)
	}
	fmt.Printf("log      %s\nkey      %s\nentries  %d\nroot     %s\n", terminal.Printable(v.Origin), terminal.Printable(v.Key),
		v.Entries, terminal.Printable(v.Root))
	if v.SealedAt != nil {
		fmt.Printf("sealed   %s (term %d)\n", v.SealedAt.Format(time.DateTime), v.Term)
	}
	for _, p := range v.Places {
		state := "nothing sent yet"
		switch {
		case p.FailingSince != nil:
			state = fmt.Sprintf("failing since %s: %s", p.FailingSince.Format(time.DateTime), terminal.Printable(*p.Message))
		case p.At != nil:
			state = fmt.Sprintf("%d entries at %s", p.Entries, p.At.Format(time.DateTime))
		}
		fmt.Printf("%-8s %s: %s\n", p.Kind, terminal.Printable(p.To), state)
	}
	if v.Queued > 0 {
		fmt.Printf("waiting  %d transactions\n", v.Queued)
	}
	if !v.Sealing {
		return errors.New("the last attempt to seal the record failed; its entries wait, and the log of the server says why")
	}
	return nil
}

func printed(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	return terminal.JSON(answer)
}

type auditVerify struct {
	clientFlags
	Against []string `help:"File with a checkpoint that was kept in another place: the log must be its continuation. May be repeated." type:"existingfile" placeholder:"FILE"`
	NoWait  bool     `name:"no-wait" help:"Return when the verification has begun. Default: wait until its end."`
}

// Run ends with an error if the record is not sound.
func (c *auditVerify) Run(ctx context.Context) error {
	var checkpoints []string
	for _, name := range c.Against {
		data, err := os.ReadFile(name)
		if err != nil {
			return terminal.UsageError{Err: err}
		}
		checkpoints = append(checkpoints, string(data))
	}
	answer, err := c.do(ctx, http.MethodPost, "/audit/verify", VerificationInputBody{Checkpoints: &checkpoints})
	if err != nil {
		return err
	}
	var v Verification
	for {
		if err := json.Unmarshal(answer, &v); err != nil {
			return fmt.Errorf("the server's answer is not a verification: %w", err)
		}
		if v.State != "running" || c.NoWait {
			break
		}
		if c.human() {
			fmt.Fprintf(os.Stderr, "\r%d of %d entries", v.Checked, v.Total)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if answer, err = c.do(ctx, http.MethodGet, "/audit/verify", nil); err != nil {
			return err
		}
	}
	if c.human() {
		fmt.Fprint(os.Stderr, "\r")
		printVerification(v)
	} else if err := terminal.JSON(answer); err != nil {
		return err
	}
	switch v.State {
	case "unsound":
		return fmt.Errorf("the record was changed after it was sealed: %s", findingText(v.Findings[0]))
	case "failed":
		return errors.New("the verification could not be completed; the log of the server says why")
	}
	return nil
}

func printVerification(v Verification) {
	fmt.Printf("%s: %d entries, %d checkpoints, in %s\n", v.State, v.Checked, v.Checkpoints,
		(time.Duration(v.DurationMs) * time.Millisecond).String())
	if v.Removed > 0 {
		fmt.Printf("%d entries have no rows any more, because fleetd removed them; their hashes were verified\n", v.Removed)
	}
	for _, f := range v.Findings {
		fmt.Println("  " + findingText(f))
	}
	if v.More > 0 {
		fmt.Printf("  and %d more\n", v.More)
	}
}

func findingText(f Finding) string {
	text := f.Problem
	if f.Entry >= 0 {
		text += " at entry " + strconv.FormatInt(f.Entry, 10)
	}
	if f.Until > 0 {
		text += " or after it, before entry " + strconv.FormatInt(f.Until, 10)
	}
	if f.Kind != "" {
		text += ": " + f.Kind + " " + f.Subject
	}
	if f.At != nil {
		text += " of " + f.At.Format(time.RFC3339)
	}
	return terminal.Printable(text)
}

type auditCheckpoint struct{ Server }

func (c *auditCheckpoint) Run(ctx context.Context) error {
	data, err := c.do(ctx, http.MethodGet, "/audit/log/checkpoint", nil)
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	return err
}

type auditProve struct {
	Server
	Entry string `arg:"" help:"Number of the entry in the log, or the id of a call or an audit entry."`
	Out   string `short:"o" help:"File to write. Default: print the proof." type:"path" placeholder:"FILE"`
}

func (c *auditProve) Run(ctx context.Context) error {
	data, err := c.do(ctx, http.MethodGet, "/audit/log/proofs/"+url.PathEscape(c.Entry), nil)
	if err != nil {
		return err
	}
	if c.Out == "" {
		_, err = os.Stdout.Write(data)
		return err
	}
	return os.WriteFile(c.Out, data, 0o644)
}

type auditCheck struct {
	File    string   `arg:"" help:"File with the proof." type:"existingfile"`
	Key     []string `required:"" help:"Public key of the log, as fleetd audit status shows it, from a source that you trust. May be repeated after the secret key was replaced." placeholder:"KEY"`
	Witness []string `help:"Public key of a witness, which must have signed as well. May be repeated." placeholder:"KEY"`
	JSON    bool     `name:"json" help:"Print only the entry, as JSON."`
}

// Run prints the entry if the proof is right.
func (c *auditCheck) Run(context.Context) error {
	data, err := os.ReadFile(c.File)
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	p, err := record.ParseProof(data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	checkpoint, err := p.Check(c.Key...)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	witnesses, err := checkpoint.Cosignatures(c.Witness...)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	if !c.JSON {
		for _, w := range witnesses {
			fmt.Printf("signed by the witness %s at %s\n", terminal.Printable(w.Witness), w.At.Format(time.RFC3339))
		}
		fmt.Printf("entry %d of the log %s, which had %d entries at %s:\n", p.Index, terminal.Printable(record.Origin(c.Key[0])),
			checkpoint.Size, checkpoint.At.Format(time.RFC3339))
	}
	fmt.Println(terminal.Printable(string(p.Line)))
	return nil
}

type auditEntries struct {
	Server
	Kind    []string `help:"Kinds of entries: action, call, connection, campaign_step, firmware. Default: action." placeholder:"KIND"`
	Subject string   `help:"Only entries about this device, campaign or other object, by its id." placeholder:"ID"`
	Action  string   `help:"Only this action, or calls of this tool." placeholder:"ACTION"`
	Actor   string   `help:"Only what this principal did, by its name." placeholder:"NAME"`
	Outcome string   `help:"Only calls in this state, connections with this presence, or steps to this state." placeholder:"STATE"`
	Trace   string   `help:"Only what this trace asked for." placeholder:"TRACE-ID"`
	Address string   `help:"Only what was asked for from this IP address." placeholder:"ADDRESS"`
	Since   string   `help:"Only entries from this time on, in RFC 3339." placeholder:"TIME"`
	Until   string   `help:"Only entries before this time, in RFC 3339." placeholder:"TIME"`
	Format  string   `help:"ndjson, an object on each line, or csv." enum:"ndjson,csv" default:"ndjson"`
}

// Run writes the entries to the standard output as they arrive.
func (c *auditEntries) Run(ctx context.Context) error {
	params := url.Values{"format": {c.Format}}
	if len(c.Kind) > 0 {
		params.Set("kind", strings.Join(c.Kind, ","))
	}
	for name, value := range map[string]string{"subject": c.Subject, "action": c.Action, "actor": c.Actor,
		"outcome": c.Outcome, "trace_id": c.Trace, "address": c.Address, "since": c.Since, "until": c.Until} {
		if value != "" {
			params.Set(name, value)
		}
	}
	body, err := c.open(ctx, "/audit/export?"+params.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(os.Stdout, body); err != nil {
		return fmt.Errorf("the answer from %s was cut off: %w", c.URL, err)
	}
	return nil
}

type auditExport struct {
	Server
	Tiles string `required:"" help:"Directory to write the log to: checkpoint, tile/..., and the entries in tile/entries/... Files that are complete are not fetched again." type:"path" placeholder:"DIR"`
}

// Run fetches the tiles and entries of the latest checkpoint. Entries whose rows were removed are left out.
func (c *auditExport) Run(ctx context.Context) error {
	note, err := c.do(ctx, http.MethodGet, "/audit/log/checkpoint", nil)
	if err != nil {
		return err
	}
	lines := strings.Split(string(note), "\n")
	if len(lines) < 2 {
		return errors.New("the server's answer is not a checkpoint")
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || size <= 0 {
		return errors.New("the server's answer is not a checkpoint")
	}
	files, missing := 0, 0
	for _, t := range tlog.NewTiles(record.TileHeight, 0, size) {
		width := url.Values{"width": {strconv.Itoa(t.W)}}
		made, err := c.fetch(ctx, record.TilePath(t, false), fmt.Sprintf("/audit/log/tiles/%d/%d?%s", t.L, t.N, width.Encode()),
			t.W == record.TileWidth)
		if err != nil {
			return err
		}
		files += made
		if t.L > 0 {
			continue
		}
		made, err = c.fetch(ctx, record.TilePath(t, true), fmt.Sprintf("/audit/log/entries/%d?%s", t.N, width.Encode()),
			t.W == record.TileWidth)
		var no *problemError
		if errors.As(err, &no) && no.code == "entry_removed" {
			missing++
			continue
		}
		if err != nil {
			return err
		}
		files += made
	}
	// The checkpoint is last: until then the directory shows the log before.
	if err := writeFile(filepath.Join(c.Tiles, "checkpoint"), note); err != nil {
		return err
	}
	fmt.Printf("%d entries, %d files written to %s\n", size, files, c.Tiles)
	if missing > 0 {
		fmt.Printf("%d of the files with entries are missing, because rows of their entries were removed after their retention\n",
			missing)
	}
	return nil
}

// fetch writes one file, unless it is complete and exists.
func (c *auditExport) fetch(ctx context.Context, name, path string, full bool) (made int, err error) {
	file := filepath.Join(c.Tiles, filepath.FromSlash(name))
	if _, err := os.Stat(file); err == nil && full {
		return 0, nil
	}
	data, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err
	}
	return 1, writeFile(file, data)
}

// writeFile writes a file completely or not at all.
func writeFile(name string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}
