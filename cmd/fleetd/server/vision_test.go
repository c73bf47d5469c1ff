package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/picture"
)

type pictureJSON struct {
	ID, Kind, Question string
	CallID             *string `json:"call_id"`
}

// takePhoto calls the camera of a device and returns its tool's answer.
func (d *testServer) takePhoto(device, question string) (call callJSON, text string) {
	d.t.Helper()
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": fleet.ToolTakePhoto,
		"arguments": map[string]any{"question": question}}, &call)
	if len(call.Result.Content) == 0 {
		d.t.Fatalf("take_photo: %+v %+v", call, call.Error)
	}
	return call, call.Result.Content[0].Text
}

func TestPhotoIsKeptWithItsCall(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	d.simulate(sim.Options{Devices: 2, Boards: []string{"custom-cam-s3"}, Seed: 7, TimeScale: 0.1})
	device := d.listed(2)[0].ID
	look := func(question string) {
		t.Helper()
		call, text := d.takePhoto(device, question)
		var answer struct {
			Success  bool
			Response string
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || call.State != "succeeded" || !answer.Success ||
			!strings.Contains(answer.Response, call.ID) {
			t.Fatalf("%+v answered %s: %v", call, text, err)
		}
		var shots list[pictureJSON]
		d.rest("GET", "/snapshots?call="+call.ID, nil, &shots)
		if len(shots.Items) != 1 || shots.Items[0].Kind != "camera" || shots.Items[0].Question != question ||
			shots.Items[0].CallID == nil || *shots.Items[0].CallID != call.ID {
			t.Fatalf("pictures of the call: %+v", shots.Items)
		}
		pictures, err := d.Snapshots.PicturesOfCall(t.Context(), uuid.MustParse(call.ID))
		if err != nil || len(pictures) != 1 {
			t.Fatalf("%d pictures: %v", len(pictures), err)
		}
		if _, err := jpeg.Decode(bytes.NewReader(pictures[0].Data)); err != nil {
			t.Error(err)
		}
	}
	look(`What is <b>"this"</b>?`)
	look("And that? 是什么")
	var screens list[pictureJSON]
	d.rest("GET", "/snapshots?kind=screen&device="+device, nil, &screens)
	if len(screens.Items) != 0 {
		t.Errorf("pictures of the screen: %+v", screens.Items)
	}

	// A board loses the address when it starts, and fleetd does not read a recent
	// inventory again.
	var call callJSON
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": "self.reboot"}, &call)
	d.eventually("the device is back", func() bool { return d.Presences.IsConnected(fleet.DeviceID(device)) })
	d.eventually("it has the address again", func() bool {
		_, text := d.takePhoto(device, "Again?")
		return strings.Contains(text, `"success":true`)
	})
	look("After a restart?")
}

func TestPhotoIsExplained(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(8 << 20); err != nil || r.Header.Get("Authorization") != "Bearer up" {
			t.Errorf("asked with %v: %v", r.Header, err)
		}
		fmt.Fprintf(w, `{"success":true,"action":"RESPONSE","response":"You asked %s"}`, r.FormValue("question"))
	}))
	defer upstream.Close()
	d := startTestServer(t, func(c *Config) { c.VisionURL, c.VisionToken = upstream.URL, "up" })
	d.simulate(sim.Options{Devices: 1, Boards: []string{"custom-cam-s3"}, Seed: 7, TimeScale: 0.1})
	device := d.listed(1)[0].ID
	call, text := d.takePhoto(device, "What is this?")
	if text != `{"success":true,"action":"RESPONSE","response":"You asked What is this?"}` || call.State != "succeeded" {
		t.Errorf("answered %s: %+v", text, call)
	}
	upstream.Close()
	d.rest("POST", "/devices/"+device+"/calls", map[string]any{"tool": fleet.ToolTakePhoto,
		"arguments": map[string]any{"question": "And now?"}}, &call)
	if call.State != "tool_error" || call.Error.Message != "Failed to upload photo" {
		t.Errorf("without an upstream: %+v %+v", call, call.Error)
	}
	pictures, err := d.Snapshots.PicturesOfCall(t.Context(), uuid.MustParse(call.ID))
	if err != nil || len(pictures) != 1 {
		t.Errorf("without an upstream %d pictures are kept: %v", len(pictures), err)
	}
}

func TestPhotoOfNoCall(t *testing.T) {
	t.Parallel()
	d := startTestServer(t, nil)
	d.simulate(sim.Options{Devices: 1, Boards: []string{"custom-cam-s3"}, Seed: 7, TimeScale: 0.1})
	device := d.listed(1)[0].ID
	_, token := d.vision.Address(fleet.DeviceID(device))
	body, contentType := formOf(t, "Who rang?", testPicture(t))
	req, err := http.NewRequest("POST", "http://"+d.http+picture.VisionPath, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Device-Id", device)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		t.Fatalf("%s: %s", resp.Status, text)
	}
	var shots list[pictureJSON]
	d.rest("GET", "/snapshots?kind=camera&device="+device, nil, &shots)
	if len(shots.Items) != 1 || shots.Items[0].CallID != nil || shots.Items[0].Question != "Who rang?" {
		t.Errorf("kept %+v", shots.Items)
	}
}

func formOf(t *testing.T, question string, picture []byte) (body *bytes.Buffer, contentType string) {
	t.Helper()
	body = &bytes.Buffer{}
	form := multipart.NewWriter(body)
	if err := form.WriteField("question", question); err != nil {
		t.Fatal(err)
	}
	file, err := form.CreateFormFile("file", "camera.jpg")
	if err != nil {
		t.Fatal(err)
	}
	file.Write(picture)
	form.Close()
	return body, form.FormDataContentType()
}

func testPicture(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, 16, 12)), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
