package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/png"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/fleettest"
	"fleetd/fleet/operator"
)

// pictureOf returns a PNG of noise, which needs 4 bytes for a pixel.
func pictureOf(t testing.TB, width, height int) []byte {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = byte(rand.Uint32())
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func images(r reply) (all [][]byte) {
	for _, c := range r.Content {
		if i, ok := c.(*mcp.ImageContent); ok && i.MIMEType == "image/png" {
			all = append(all, i.Data)
		}
	}
	return all
}

// The answer to a call contains the pictures that a camera took for it, within
// limits.
func TestPhotosOfACall(t *testing.T) {
	w := newWorld(t)
	camera := append(slices.Clone(tools), fleet.Tool{Name: fleet.ToolTakePhoto, Description: "Look.",
		Audience: fleet.AudienceModel, InputSchema: json.RawMessage(
			`{"type":"object","properties":{"question":{"type":"string"}},"required":["question"]}`)})
	w.listing(t, unit, "ee", camera)
	large, first, second, third := pictureOf(t, 700, 500), pictureOf(t, 9, 9), pictureOf(t, 8, 8), pictureOf(t, 7, 7)
	var sends [][]byte
	w.link.Connect(unit, func(ctx context.Context, tool string, arguments json.RawMessage) (fleet.Answer, error) {
		var in struct{ Question string }
		if err := json.Unmarshal(arguments, &in); err != nil {
			return fleet.Answer{}, err
		}
		for _, data := range sends {
			if _, err := w.snapshots.Photo(ctx, unit, in.Question, bytes.NewReader(data)); err != nil {
				t.Error(err)
			}
		}
		return fleettest.Text("a cat"), nil
	})
	question := map[string]any{"question": "What is this?"}
	inFleet := map[string]any{"device": unit, "tool": fleet.ToolTakePhoto, "arguments": question}
	token := w.token(t, operator.TokenRequest{Kind: fleet.KindModel})
	for _, version := range versions {
		for _, tt := range []struct {
			path, tool  string
			args        any
			sends, want [][]byte
			says        string
		}{
			{"/mcp", "call_device", inFleet, [][]byte{first}, [][]byte{first}, "took 1 picture; 1 attached"},
			{"/mcp", "call_device", inFleet, [][]byte{large, first, second, third}, [][]byte{first, second},
				"took 4 pictures; 2 attached"},
			{"/mcp", "call_device", inFleet, nil, nil, "succeeded"},
			{"/mcp/devices/" + string(unit), fleet.ToolTakePhoto, question, [][]byte{large, second}, [][]byte{second},
				"took 2 pictures; 1 attached"},
		} {
			s := w.client(t, token, tt.path, nil, version)
			sends = tt.sends
			r := invoke(t, s, tt.tool, tt.args)
			made := into[struct {
				ID     string
				Photos int
			}](t, r)
			if got := images(r); r.IsError || !slices.EqualFunc(got, tt.want, bytes.Equal) || made.Photos != len(tt.sends) {
				t.Errorf("%s %s: %d images of %d; %s %s", version, tt.path, len(got), made.Photos, r.text, r.data)
			}
			if ours, _, marked := strings.Cut(r.text, "text written by the device follows"); !marked ||
				!strings.Contains(ours, tt.says) {
				t.Errorf("%s %s: %q, want %q", version, tt.path, r.text, tt.says)
			}
			later := invoke(t, w.client(t, token, "/mcp", nil, version), "get_call", map[string]any{"id": made.ID})
			if got := images(later); !slices.EqualFunc(got, tt.want, bytes.Equal) || !strings.Contains(later.text, tt.says) {
				t.Errorf("%s get_call: %d images; %s", version, len(got), later.text)
			}
		}
	}
	outside := w.client(t, w.token(t, operator.TokenRequest{Name: "outside", Scope: "tag:none"}), "/mcp", nil, "")
	calls, err := w.calls.List(t.Context(), call.Filter{Tool: fleet.ToolTakePhoto, Limit: 1})
	if err != nil || len(calls.Items) != 1 {
		t.Fatal(err)
	}
	if r := invoke(t, outside, "get_call", map[string]any{"id": calls.Items[0].ID}); !r.IsError || len(images(r)) > 0 {
		t.Errorf("get_call outside of the scope: %s", r.text)
	}
}
