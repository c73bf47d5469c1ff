package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type UpstreamCommand struct {
	List   upstreamList   `cmd:"" help:"List voice servers in order: a device uses the first one whose filter matches."`
	Add    upstreamAdd    `cmd:"" help:"Add a voice server."`
	Set    upstreamSet    `cmd:"" help:"Change or move a voice server."`
	Remove upstreamRemove `cmd:"" help:"Remove a voice server."`
	Check  upstreamCheck  `cmd:"" help:"Exchange a hello with a voice server now. Exits with code 1 if that fails."`
	Match  upstreamMatch  `cmd:"" help:"Show which voice server a device uses, and why."`
}

type upstreamList struct{ clientFlags }

func (c *upstreamList) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/upstreams", nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var all UpstreamList
	if err := json.Unmarshal(answer, &all); err != nil {
		return err
	}
	var rows [][]string
	for i, u := range all.Items {
		rows = append(rows, []string{strconv.Itoa(i), u.ID, u.Name, u.Kind, u.URL, u.Devices, upstreamState(u)})
	}
	return terminal.Table("PLACE ID NAME KIND URL DEVICES STATE", rows)
}

func upstreamState(u Upstream) string {
	h := u.Health
	switch {
	case !u.Enabled:
		return "disabled"
	case u.Kind == "none":
		return ""
	case h.Failures > 0:
		return fmt.Sprintf("%d failures: %s", h.Failures, h.Code)
	case h.LastSuccess != nil:
		return fmt.Sprintf("OK, hello took %v", time.Duration(h.HelloMs)*time.Millisecond)
	}
	return "not tried"
}

// upstreamFields are the fields that can be set; those without a flag are left
// out.
type upstreamFields struct {
	Auth   *string `help:"none, secret (used to create a token for each device) or token (the same for all devices)." enum:"none,secret,token"`
	Secret *string `help:"The secret or token; better passed in the environment or a file." env:"FLEETD_UPSTREAM_SECRET" placeholder:"SECRET"`

	SecretFile string `name:"secret-file" help:"File that contains this secret." env:"FLEETD_UPSTREAM_SECRET_FILE" type:"path" placeholder:"FILE"`

	Devices   *string `short:"q" help:"Filter of the devices that use the voice server. If empty: any device." placeholder:"QUERY"`
	Tools     *bool   `help:"Allow its language model to list and call device tools." negatable:""`
	Enabled   *bool   `help:"Enable the voice server." negatable:""`
	Position  *int    `help:"Place in the list, from 0." placeholder:"N"`
	IfVersion int64   `name:"if-version" help:"Change nothing if the list no longer has this version." placeholder:"N"`
}

func (f *upstreamFields) readSecret() error {
	if f.SecretFile == "" {
		return nil
	}
	if f.Secret == nil {
		f.Secret = new(string)
	}
	return terminal.ReadSecrets(terminal.WarnOpenSecret, terminal.Secret{Flag: "--secret", Value: f.Secret,
		File: f.SecretFile})
}

func (f *upstreamFields) body(name, kind, address *string) map[string]any {
	body := map[string]any{}
	for key, v := range map[string]*string{"name": name, "kind": kind, "url": address, "auth": f.Auth,
		"secret": f.Secret, "devices": f.Devices} {
		if v != nil {
			body[key] = *v
		}
	}
	for key, v := range map[string]*bool{"tools": f.Tools, "enabled": f.Enabled} {
		if v != nil {
			body[key] = *v
		}
	}
	if f.Position != nil {
		body["position"] = *f.Position
	}
	if f.IfVersion != 0 {
		body["version"] = f.IfVersion
	}
	return body
}

type upstreamAdd struct {
	clientFlags
	upstreamFields
	Name    string `arg:"" help:"Name of the voice server."`
	Address string `arg:"" optional:"" help:"WebSocket address (ws:// or wss://) or OTA address (http:// or https://) of the voice server. None with --kind none."`
	Kind    string `help:"websocket (a fixed address), ota (found through its OTA address) or none (these devices have no voice)." enum:"websocket,ota,none" default:"websocket"`
}

func (c *upstreamAdd) Run(ctx context.Context) error {
	if err := c.readSecret(); err != nil {
		return err
	}
	return c.show(c.do(ctx, http.MethodPost, "/upstreams", c.body(&c.Name, &c.Kind, &c.Address)))
}

// show prints a voice server after a change.
func (c *clientFlags) show(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var u Upstream
	if err := json.Unmarshal(answer, &u); err != nil {
		return err
	}
	fmt.Printf("%s %s, place %d\n", u.ID, terminal.Printable(u.Name), u.Position)
	return nil
}

type upstreamSet struct {
	clientFlags
	upstreamFields
	ID      string  `arg:"" help:"Id of the voice server."`
	Name    *string `help:"Name of the voice server."`
	Address *string `help:"Address of the voice server." placeholder:"URL"`
	Kind    *string `help:"websocket, ota or none." enum:"websocket,ota,none"`
}

func (c *upstreamSet) Run(ctx context.Context) error {
	if err := c.readSecret(); err != nil {
		return err
	}
	return c.show(c.do(ctx, http.MethodPatch, "/upstreams/"+url.PathEscape(c.ID), c.body(c.Name, c.Kind, c.Address)))
}

type upstreamRemove struct {
	clientFlags
	ID string `arg:"" help:"Id of the voice server."`
}

func (c *upstreamRemove) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/upstreams/"+url.PathEscape(c.ID), nil)
	return err
}

type upstreamCheck struct {
	clientFlags
	ID string `arg:"" help:"Id of the voice server."`
}

func (c *upstreamCheck) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodPost, "/upstreams/"+url.PathEscape(c.ID)+"/check", struct{}{})
	if err != nil {
		return err
	}
	var check UpstreamCheck
	if err := json.Unmarshal(answer, &check); err != nil {
		return err
	}
	if !c.human() {
		if err := terminal.JSON(answer); err != nil {
			return err
		}
	}
	if !check.Ok {
		return errors.New("the voice server failed: " + check.Message)
	}
	if c.human() {
		fmt.Printf("OK, hello took %v\n", time.Duration(check.TookMs)*time.Millisecond)
	}
	return nil
}

type upstreamMatch struct {
	clientFlags
	Device string `arg:"" help:"Id of the device."`
}

func (c *upstreamMatch) Run(ctx context.Context) error {
	answer, err := c.do(ctx, http.MethodGet, "/upstreams/match?device="+url.QueryEscape(c.Device), nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var m UpstreamMatch
	if err := json.Unmarshal(answer, &m); err != nil {
		return err
	}
	var rows [][]string
	for _, s := range m.Steps {
		rows = append(rows, []string{s.Name, s.Outcome, s.Term})
	}
	if err := terminal.Table("NAME OUTCOME TERM", rows); err != nil {
		return err
	}
	if m.Account != nil && m.Account.Code != "" {
		fmt.Println("\nCode to enter at the voice server: " + terminal.Printable(m.Account.Code))
	}
	return nil
}
