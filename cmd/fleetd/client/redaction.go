package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type RedactionCommand struct {
	List   redactionList   `cmd:"" default:"withargs" help:"List redaction rules (the default)."`
	Create redactionCreate `cmd:"" help:"Store values at a path in the arguments of a tool as digests."`
	Update redactionUpdate `cmd:"" help:"Change a redaction rule."`
	Delete redactionDelete `cmd:"" help:"Delete a redaction rule; later calls are stored with their values."`
	Digest redactionDigest `cmd:"" help:"Print the digest of a value, which is read from standard input: fleetd call list --digest DIGEST finds its calls."`
}

const redactionHeading = "ID TOOL PATH NOTE REVISION UPDATED-BY UPDATED"

func (r Redaction) row() []string {
	return []string{r.ID, r.Tool, r.Path, r.Note, strconv.FormatInt(r.Revision, 10), r.UpdatedBy,
		r.UpdatedAt.Format(time.DateTime)}
}

type redactionList struct{ clientFlags }

func (c *redactionList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/redaction/rules", url.Values{}, 1000)
	if err != nil {
		return err
	}
	return listed(&c.clientFlags, items, redactionHeading, Redaction.row)
}

type redactionCreate struct {
	clientFlags
	Tool string `arg:"" help:"Tool, or a beginning followed by * (self.wifi.*)."`
	Path string `arg:"" help:"JSONPath into the arguments ($.password, $.networks[*].key, $..token)."`
	Note string `help:"Note for people."`
}

func (c *redactionCreate) Run(ctx context.Context) error {
	body := map[string]any{"tool": c.Tool, "path": c.Path, "note": c.Note}
	return shown(&c.clientFlags, redactionHeading, Redaction.row)(c.do(ctx, http.MethodPost, "/redaction/rules", body))
}

// redactionID names a rule.
type redactionID struct {
	clientFlags
	ID       string `arg:"" help:"Id of the rule."`
	Revision int64  `help:"Only if the rule still has this revision."`
}

func (c *redactionID) path() string { return "/redaction/rules/" + url.PathEscape(c.ID) }

type redactionUpdate struct {
	redactionID
	Tool *string `help:"Tool, or a beginning followed by *."`
	Path *string `help:"JSONPath into the arguments."`
	Note *string `help:"Note for people."`
}

func (c *redactionUpdate) Run(ctx context.Context) error {
	body := map[string]any{}
	for name, given := range map[string]*string{"tool": c.Tool, "path": c.Path, "note": c.Note} {
		if given != nil {
			body[name] = *given
		}
	}
	if len(body) == 0 {
		return terminal.UsageError{Err: errors.New("nothing to change; use --tool, --path or --note")}
	}
	if c.Revision > 0 {
		body["revision"] = c.Revision
	}
	return shown(&c.clientFlags, redactionHeading, Redaction.row)(c.do(ctx, http.MethodPatch, c.path(), body))
}

type redactionDelete struct{ redactionID }

func (c *redactionDelete) Run(ctx context.Context) error {
	path := c.path()
	if c.Revision > 0 {
		path += "?revision=" + strconv.FormatInt(c.Revision, 10)
	}
	_, err := c.do(ctx, http.MethodDelete, path, nil)
	return err
}

// maxDigested bounds the value that is read.
const maxDigested = 1 << 20

type redactionDigest struct {
	clientFlags
	JSONValue bool `name:"json-value" help:"The input is a JSON value, such as a number or an object; otherwise it is a text."`
}

func (c *redactionDigest) Run(ctx context.Context) error {
	input, err := io.ReadAll(io.LimitReader(os.Stdin, maxDigested))
	if err != nil {
		return err
	}
	value := json.RawMessage(input)
	if !c.JSONValue {
		value, _ = json.Marshal(strings.TrimRight(string(input), "\r\n")) // a string always marshals
	} else if !json.Valid(value) {
		return terminal.UsageError{Err: errors.New("the input is not JSON")}
	}
	return shown(&c.clientFlags, "DIGEST", Digest.row)(c.do(ctx, http.MethodPost, "/redaction/digest",
		map[string]any{"value": value}))
}

func (d Digest) row() []string { return []string{d.Digest} }
