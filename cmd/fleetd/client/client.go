// Package client implements fleetd's commands that manage a running server over REST,
// from any machine: devices, firmware images, releases, campaigns and serial numbers. It
// prints text on a terminal, and JSON otherwise.
//
// It depends only on the contract of REST, through types generated from the OpenAPI
// document (api.gen.go): not on a database, a broker or the server's defaults. A command
// makes one request after the other; there is no goroutine and no lock.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

// A Server is the flags that name a server, and the token with which to reach it.
type Server struct {
	URL   string `help:"Address of the server." default:"http://127.0.0.1:8080" env:"FLEETD_URL" placeholder:"URL"`
	Token string `help:"API token; create one with: fleetd token create NAME." env:"FLEETD_TOKEN" placeholder:"flt_..."`

	TokenFile string `name:"token-file" help:"File that contains the token." env:"FLEETD_TOKEN_FILE" type:"path" placeholder:"FILE"`
}

// clientFlags are the flags that name the server, and the format of the output.
type clientFlags struct {
	Server
	JSON bool `name:"json" help:"Print JSON even on a terminal."`
}

// maxAnswer bounds the bytes that a client reads of an answer; 256 entries of the sealed record
// have less than 16 MiB, a tool result at most 256 KiB.
const maxAnswer = 17 << 20

// do sends a request and returns the JSON of the answer. A problem becomes an error with
// the server's own text.
func (c *Server) do(ctx context.Context, method, path string, body any) (json.RawMessage, error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	return c.send(&http.Client{Timeout: 6 * time.Minute}, req) // a call may take five minutes
}

// send sends a request and returns the JSON of the answer.
func (c *Server) send(client *http.Client, req *http.Request) (json.RawMessage, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the server at %s (is it running? see --url): %w", c.URL, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("the answer from %s was cut off: %w", c.URL, err)
	}
	if resp.StatusCode >= 400 {
		return nil, problem(resp, data)
	}
	return data, nil
}

func (c *Server) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	if err := c.readToken(); err != nil {
		return nil, err
	}
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+"/api/v1"+path, r)
	if err != nil {
		return nil, terminal.UsageError{Err: fmt.Errorf("--url: %w", err)}
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// readToken fills in a token that is given in a file, and requires one.
func (c *Server) readToken() error {
	if err := terminal.ReadSecrets(terminal.WarnOpenSecret, terminal.Secret{Flag: "--token", Value: &c.Token,
		File: c.TokenFile}); err != nil {
		return terminal.UsageError{Err: err}
	}
	if c.Token == "" {
		return terminal.UsageError{Err: errors.New(
			"no API token: set FLEETD_TOKEN, or make one on the server with: fleetd token create NAME")}
	}
	return nil
}

// A problemError is a problem that the server reports, with its code.
type problemError struct {
	status       int
	code, detail string
}

// passes reports whether the same request may succeed later.
func (e *problemError) passes() bool {
	return e.status == http.StatusTooManyRequests || e.status >= http.StatusInternalServerError
}

func (e *problemError) Error() string { return fmt.Sprintf("%s (%s)", e.detail, e.code) }

func problem(resp *http.Response, data []byte) error {
	var p Problem
	if json.Unmarshal(data, &p) != nil || p.Detail+p.Title == "" {
		return fmt.Errorf("the server answered %s", resp.Status)
	}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	if p.Code == "" {
		return errors.New(terminal.Printable(p.Detail))
	}
	return &problemError{resp.StatusCode, p.Code, terminal.Printable(p.Detail)}
}

// all follows the cursors of a list, up to limit items.
func (c *Server) all(ctx context.Context, path string, params url.Values, limit int) ([]json.RawMessage, error) {
	items := []json.RawMessage{}
	for {
		params.Set("limit", fmt.Sprint(min(500, limit-len(items))))
		data, err := c.do(ctx, http.MethodGet, path+"?"+params.Encode(), nil)
		if err != nil {
			return nil, err
		}
		var page struct { // fits every list
			Items      []json.RawMessage `json:"items"`
			NextCursor string            `json:"next_cursor"`
		}
		if err := json.Unmarshal(data, &page); err != nil {
			return nil, fmt.Errorf("the server's answer is not a list: %w", err)
		}
		items = append(items, page.Items...)
		if page.NextCursor == "" || len(items) >= limit {
			return items, nil
		}
		params.Set("cursor", page.NextCursor)
	}
}

// human reports whether to print for a person rather than for a script.
func (c *clientFlags) human() bool { return !c.JSON && terminal.Interactive() }
