package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// The errors below are the firmware's own texts, which it answers unescaped.
//
//lint:file-ignore ST1005 the firmware's texts start in upper case

const (
	snapshotBoundary = "----ESP32_SCREEN_SNAPSHOT_BOUNDARY"
	cameraBoundary   = "----ESP32_CAMERA_BOUNDARY"
)

// snapshot uploads a picture of the screen (4.8). The server identifies it by the URL alone.
func snapshot(ctx context.Context, d *Device, args []argument) (result, error) {
	url := args[0].s
	picture, err := d.screenshot(args[1].i)
	if err != nil {
		return result{}, errors.New("Failed to snapshot screen")
	}
	resp, err := d.sendSnapshot(ctx, url, picture)
	if err != nil {
		return result{}, fmt.Errorf("Failed to open URL: %s", url)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return result{}, fmt.Errorf("Unexpected status code: %d", resp.StatusCode)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	d.stats().uploads.Add(1)
	return done(true)
}

func (d *Device) sendSnapshot(ctx context.Context, url string, picture []byte) (*http.Response, error) {
	body := append(filePart(snapshotBoundary, "screenshot.jpg", picture), closing(snapshotBoundary)...)
	req, err := d.upload(ctx, url, snapshotBoundary, body)
	if err != nil {
		return nil, err
	}
	return d.fleet.fetch(req)
}

// takePhoto sends a picture with a question, and returns the server's answer
// unchanged.
func takePhoto(ctx context.Context, d *Device, args []argument) (result, error) {
	picture, err := d.photo(args[0].s)
	if err != nil {
		return result{}, errors.New("Failed to capture photo")
	}
	d.mu.Lock()
	to := d.vision
	d.mu.Unlock()
	if to.url == "" {
		return result{}, errors.New("Image explain URL or token is not set")
	}
	resp, err := d.explain(ctx, to, args[0].s, picture)
	if err != nil {
		return result{}, errors.New("Failed to connect to explain URL")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return result{}, errors.New("Failed to upload photo")
	}
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return result{}, errors.New("Failed to upload photo")
	}
	d.stats().uploads.Add(1)
	return result{text: string(answer)}, nil
}

func (d *Device) explain(ctx context.Context, to vision, question string, picture []byte) (*http.Response, error) {
	body := append(textPart(cameraBoundary, "question", question), filePart(cameraBoundary, "camera.jpg", picture)...)
	req, err := d.upload(ctx, to.url, cameraBoundary, append(body, closing(cameraBoundary)...))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Device-Id", d.id.mac)
	req.Header.Set("Client-Id", d.id.uuid)
	if to.token != "" {
		req.Header.Set("Authorization", "Bearer "+to.token)
	}
	return d.fleet.fetch(req)
}

// upload returns a multipart POST request in chunked coding.
func (d *Device) upload(ctx context.Context, url, boundary string, body []byte) (*http.Request, error) {
	req, err := d.request(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.ContentLength, req.GetBody = -1, nil // unknown length makes it chunked
	req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
	return req, nil
}

func textPart(boundary, name, text string) []byte {
	return fmt.Appendf(nil, "--%s\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n", boundary, name, text)
}

func filePart(boundary, filename string, data []byte) []byte {
	b := fmt.Appendf(nil, "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\nContent-Type: image/jpeg\r\n\r\n", boundary, filename)
	return append(append(b, data...), "\r\n"...)
}

func closing(boundary string) string { return "--" + boundary + "--\r\n" }

// previewImage loads a picture completely into RAM, within the RAM of a board.
func previewImage(ctx context.Context, d *Device, args []argument) (result, error) {
	const ram = 4 << 20
	url := args[0].s
	resp, err := d.get(ctx, url)
	if err != nil {
		return result{}, fmt.Errorf("Failed to open URL: %s", url)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return result{}, fmt.Errorf("Unexpected status code: %d", resp.StatusCode)
	case resp.ContentLength <= 0 || resp.ContentLength > ram:
		return result{}, fmt.Errorf("Failed to allocate memory for image: %s", url)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		return result{}, fmt.Errorf("Failed to download image: %s", url)
	}
	d.stats().downloads.Add(1)
	d.stats().downloadedBytes.Add(n)
	d.change(func(s *State) { s.Message = fmt.Sprintf("image, %d bytes", n) })
	return done(true)
}
