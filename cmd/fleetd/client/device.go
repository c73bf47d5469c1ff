package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fleetd/cmd/fleetd/terminal"
)

type DeviceCommand struct {
	List        deviceList        `cmd:"" help:"List devices."`
	Show        deviceShow        `cmd:"" help:"Show one device and its tools."`
	Call        deviceCall        `cmd:"" help:"Call a tool of a device and print the outcome."`
	Claim       deviceClaim       `cmd:"" help:"Claim the device that shows this code."`
	CreateMQTT5 deviceCreateMQTT5 `cmd:"" name:"create-mqtt5" help:"Create a device of MCP over MQTT 5 and print its credentials, once."`
	Reissue     deviceReissue     `cmd:"" help:"Replace the credentials of a device of MCP over MQTT 5 and print the new ones, once."`
	Revoke      deviceRevoke      `cmd:"" help:"Revoke the credentials of a device of MCP over MQTT 5."`
	Hold        deviceHold        `cmd:"" help:"Put a device on hold: nobody else can act on it."`
	Release     deviceRelease     `cmd:"" help:"End the hold on a device."`
	Transport   deviceTransport   `cmd:"" help:"Set the transport of devices from their next start."`
	Replace     deviceReplace     `cmd:"" help:"Retire a device and give its name, tags, notes, time zone, transport and hold to another unit."`
}

type deviceList struct {
	clientFlags
	Query string `arg:"" optional:"" help:"Filter, for example: board:bread-compact-wifi presence:online -hold"`
	Limit int    `help:"Print at most this many." default:"1000"`
}

func (c *deviceList) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/devices", url.Values{"q": {c.Query}}, c.Limit)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(items)
	}
	var rows [][]string
	for _, item := range items {
		var d Device
		if err := json.Unmarshal(item, &d); err != nil {
			return err
		}
		rows = append(rows, []string{d.ID, d.Name, d.Board, d.Version, d.Presence, since(d.PresenceSince),
			strings.Join(d.Tags, ",")})
	}
	return terminal.Table("ID NAME BOARD VERSION PRESENCE SINCE TAGS", rows)
}

func since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return time.Since(*t).Round(time.Second).String()
}

type deviceShow struct {
	clientFlags
	ID string `arg:"" help:"Device id; a MAC address in any form."`
}

func (c *deviceShow) Run(ctx context.Context) error {
	device, err := c.do(ctx, http.MethodGet, devicePath(c.ID, ""), nil)
	if err != nil {
		return err
	}
	tools, err := c.do(ctx, http.MethodGet, devicePath(c.ID, "/tools?audience=all"), nil)
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(map[string]json.RawMessage{"device": device, "tools": tools})
	}
	return showDevice(device, tools)
}

func showDevice(device, tools json.RawMessage) error {
	var d Device
	var list ToolList
	if err := errors.Join(json.Unmarshal(device, &d), json.Unmarshal(tools, &list)); err != nil {
		return err
	}
	rows := [][]string{{d.ID, d.Name, d.Board, d.Chip, d.Version, d.Slot, d.Presence, d.Enrolment}}
	if err := terminal.Table("ID NAME BOARD CHIP VERSION SLOT PRESENCE ENROLMENT", rows); err != nil {
		return err
	}
	if d.Hold != nil {
		fmt.Printf("held by %s: %s\n", terminal.Printable(d.Hold.By), terminal.Printable(d.Hold.Reason))
	}
	fmt.Println()
	rows = nil
	for _, t := range list.Items {
		rows = append(rows, []string{t.Name, t.Audience})
	}
	return terminal.Table("TOOL AUDIENCE", rows)
}

type deviceCall struct {
	clientFlags
	ID          string        `arg:"" help:"Device id; a MAC address in any form."`
	Tool        string        `arg:"" help:"Name of the tool: self.audio_speaker.set_volume"`
	Arguments   string        `arg:"" optional:"" help:"Arguments as a JSON object." default:"{}"`
	Timeout     time.Duration `help:"How long to wait for the answer. Default: depends on the tool."`
	OfflineWait time.Duration `help:"If the device is offline, send the call when it is back, within this time: 24h. You can cancel the call until then."`
	Interrupt   bool          `help:"Do not wait for the end of the device's conversation."`
	Picture     string        `help:"JPEG or PNG for self.screen.preview_image to show." type:"existingfile" placeholder:"FILE"`
}

// post makes the call, as a form if there is a picture.
func (c *deviceCall) post(ctx context.Context, call MakeCallInputBody) (json.RawMessage, error) {
	if c.Picture == "" {
		return c.do(ctx, http.MethodPost, devicePath(c.ID, "/calls"), call)
	}
	picture, err := os.ReadFile(c.Picture)
	if err != nil {
		return nil, terminal.UsageError{Err: err}
	}
	text, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	form := multipart.NewWriter(&body) // writes to memory, which cannot fail
	_ = form.WriteField("call", string(text))
	part, _ := form.CreateFormFile("picture", filepath.Base(c.Picture))
	_, _ = part.Write(picture)
	_ = form.Close()
	req, err := c.request(ctx, http.MethodPost, devicePath(c.ID, "/calls"), nil)
	if err != nil {
		return nil, err
	}
	req.Body, req.ContentLength = io.NopCloser(&body), int64(body.Len())
	req.Header.Set("Content-Type", form.FormDataContentType())
	return c.send(&http.Client{Timeout: 6 * time.Minute}, req)
}

// Run prints the call and fails unless it succeeded.
func (c *deviceCall) Run(ctx context.Context) error {
	if !json.Valid([]byte(c.Arguments)) {
		return terminal.UsageError{Err: fmt.Errorf("the arguments %q are not JSON; write for example '{\"volume\":50}'", c.Arguments)}
	}
	body := MakeCallInputBody{Tool: c.Tool, Arguments: new(json.RawMessage(c.Arguments))}
	if c.Timeout > 0 {
		body.TimeoutMs = new(c.Timeout.Milliseconds())
	}
	if c.OfflineWait > 0 {
		body.Offline, body.OfflineWaitMs = new("wait"), new(c.OfflineWait.Milliseconds())
	}
	if c.Interrupt {
		body.Interrupt = &c.Interrupt
	}
	answer, err := c.post(ctx, body)
	if err != nil {
		return err
	}
	var call Call
	if err := json.Unmarshal(answer, &call); err != nil {
		return err
	}
	if !c.human() {
		err = terminal.JSON(answer)
	} else if call.Result != nil {
		for _, part := range call.Result.Content {
			fmt.Println(terminal.Printable(part.Text))
		}
	}
	switch {
	case call.State == "pending_approval":
		return fmt.Errorf("the call %s waits for approval: fleetd approval approve %s", call.ID, orEmpty(call.ApprovalID))
	case call.State == "pending_device":
		fmt.Fprintf(os.Stderr, "the call %s waits until the device is back; to cancel it: fleetd call cancel %[1]s\n", call.ID)
	case call.Error != nil && call.State == "succeeded": // its answer was too large to store
		fmt.Fprintf(os.Stderr, "%s (%s)\n", terminal.Printable(call.Error.Message), call.Error.Code)
	case call.Error != nil:
		return fmt.Errorf("%s: %s (%s)", call.State, terminal.Printable(call.Error.Message), call.Error.Code)
	}
	return err
}

type deviceClaim struct {
	clientFlags
	Code string `arg:"" help:"The six digits that the device shows and speaks."`
}

func (c *deviceClaim) Run(ctx context.Context) error {
	return c.printDevice(c.do(ctx, http.MethodPost, "/devices/claim", ClaimInputBody{Code: c.Code}))
}

type deviceCreateMQTT5 struct {
	clientFlags
	ID   string `arg:"" help:"Id of the device, with which it connects: lower-case letters, digits, and . _ - between them."`
	Name string `help:"Name that people see."`
}

func (c *deviceCreateMQTT5) Run(ctx context.Context) error {
	body := CreateDeviceInputBody{ID: c.ID}
	if c.Name != "" {
		body.Name = &c.Name
	}
	return c.printCredentials(c.do(ctx, http.MethodPost, "/devices", body))
}

type deviceReissue struct {
	clientFlags
	ID string `arg:"" help:"Device id."`
}

func (c *deviceReissue) Run(ctx context.Context) error {
	return c.printCredentials(c.do(ctx, http.MethodPost, devicePath(c.ID, "/credentials"), nil))
}

type deviceRevoke struct {
	clientFlags
	ID string `arg:"" help:"Device id."`
}

func (c *deviceRevoke) Run(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, devicePath(c.ID, "/credentials"), nil)
	return err
}

// printCredentials prints what a device of MCP over MQTT 5 needs to connect.
func (c *clientFlags) printCredentials(answer json.RawMessage, err error) error {
	if err != nil {
		return err
	}
	if !c.human() {
		return terminal.JSON(answer)
	}
	var got Credentials
	if err := json.Unmarshal(answer, &got); err != nil {
		return err
	}
	err = terminal.Table("DEVICE "+got.DeviceID, [][]string{{"broker", got.Broker}, {"client id", got.ClientID},
		{"user name", got.Username}, {"password", got.Password}})
	fmt.Fprintln(os.Stderr, "The password is not shown again.")
	return err
}

type deviceHold struct {
	clientFlags
	ID     string        `arg:"" help:"Device id; a MAC address in any form."`
	Reason string        `arg:"" help:"Reason."`
	For    time.Duration `help:"End the hold after this time."`
}

func (c *deviceHold) Run(ctx context.Context) error {
	body := HoldInputBody{Reason: c.Reason}
	if c.For > 0 {
		body.Until = new(time.Now().Add(c.For).UTC())
	}
	return c.printDevice(c.do(ctx, http.MethodPost, devicePath(c.ID, "/hold"), body))
}

type deviceRelease struct {
	clientFlags
	ID string `arg:"" help:"Device id; a MAC address in any form."`
}

func (c *deviceRelease) Run(ctx context.Context) error {
	return c.printDevice(c.do(ctx, http.MethodPost, devicePath(c.ID, "/release"), nil))
}

type deviceTransport struct {
	clientFlags
	Transport string `arg:"" enum:"mqtt,ws" help:"mqtt: always connected, audio over UDP. ws: a WebSocket, only during conversations."`
	Query     string `arg:"" help:"Filter that picks the devices, as for device list, which shows them."`
}

func (c *deviceTransport) Run(ctx context.Context) error {
	items, err := c.all(ctx, "/devices", url.Values{"q": {c.Query}}, maxTransportDevices)
	if err != nil {
		return err
	}
	for _, item := range items {
		var d Device
		if err := json.Unmarshal(item, &d); err != nil {
			return err
		}
		if string(d.TransportChoice) == c.Transport {
			continue
		}
		body := map[string]string{"transport_choice": c.Transport}
		if err := c.printDevice(c.do(ctx, http.MethodPatch, devicePath(d.ID, ""), body)); err != nil {
			return err
		}
	}
	return nil
}

// maxTransportDevices bounds the devices of one command. For more devices,
// repeat the command.
const maxTransportDevices = 10_000

type deviceReplace struct {
	clientFlags
	ID   string `arg:"" help:"Device to retire; a MAC address in any form."`
	By   string `help:"Id of the unit that takes over; if it is waiting to join, it is approved." xor:"successor" required:"" placeholder:"ID"`
	Code string `help:"The six digits that the waiting unit shows." xor:"successor" required:"" placeholder:"CODE"`
}

func (c *deviceReplace) Run(ctx context.Context) error {
	body := ReplaceInputBody{Successor: &c.By}
	if c.By == "" {
		body = ReplaceInputBody{Code: &c.Code}
	}
	return c.printDevice(c.do(ctx, http.MethodPost, devicePath(c.ID, "/replace"), body))
}

// shown prints the server's answer: as a table with one row, or as JSON.
func shown[T any](c *clientFlags, heading string, row func(T) []string) func(json.RawMessage, error) error {
	return func(answer json.RawMessage, err error) error {
		if err != nil {
			return err
		}
		if !c.human() {
			return terminal.JSON(answer)
		}
		return listed(c, []json.RawMessage{answer}, heading, row)
	}
}

// printDevice prints the device that an action returned.
func (c *clientFlags) printDevice(answer json.RawMessage, err error) error {
	return shown(c, "ID NAME BOARD PRESENCE ENROLMENT", func(d Device) []string {
		return []string{d.ID, d.Name, d.Board, d.Presence, d.Enrolment}
	})(answer, err)
}

func devicePath(id, rest string) string { return "/devices/" + url.PathEscape(id) + rest }
