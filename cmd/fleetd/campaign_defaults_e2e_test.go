package main

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"path"
	"testing"
	"time"

	"golang.org/x/net/html"

	"fleetd/broker/sim"
)

// A plan with a name, a release and a filter is the same plan whether it is made in the console,
// over REST or by a command.
func TestCampaignDefaultsAreOneSet(t *testing.T) {
	t.Parallel()
	const board = "bread-compact-wifi"
	d := newDaemon(t, "--admin-password", consolePassword)
	// One device: the choice of the canary among several depends on the campaign's id, and so does
	// the digest.
	d.simulate(sim.Options{Devices: 1, Boards: []string{board}, Seed: 11, TimeScale: 0.05,
		BootDelay: 200 * time.Millisecond})
	d.listed(1)
	release := d.made("id", "release", "create",
		d.made("sha256", "image", "push", writeImage(t, board, "9.1.0"), "--board", board))
	const name, query = "spring", "board:" + board

	type planned struct {
		ID, Digest     string
		MinHeapPercent int `json:"min_heap_percent"`
		Waves          []struct{ Name string }
	}
	var byREST planned
	if status := d.rest("POST", "/campaigns", map[string]string{"name": name, "release_id": release, "q": query},
		&byREST); status != http.StatusCreated {
		t.Fatalf("POST /campaigns: status %d", status)
	}
	if byREST.MinHeapPercent != 50 || len(byREST.Waves) != 3 || byREST.Waves[0].Name != "canary" {
		t.Errorf("over REST the plan is %+v", byREST)
	}

	browser := signedIn(t, d)
	byHand := url.Values{"name": {name}, "release": {release}, "q": {query}}
	shown := formFields(t, get(t, browser, "http://"+d.http+"/campaigns/new?"+byHand.Encode()), "wave.size")
	doors := map[string]string{
		"the command":        d.made("id", "campaign", "create", "--name", name, "--release", release, "--q", query),
		"the form as shown":  d.planned(browser, shown),
		"a form of 3 fields": d.planned(browser, byHand),
		"the form in Chinese": d.planned(browser, formFields(t, d.chinese(browser, "/campaigns/new?"+byHand.Encode()),
			"wave.size")),
	}
	for door, id := range doors {
		var got planned
		d.rest("GET", "/campaigns/"+id, nil, &got)
		if got.Digest != byREST.Digest || got.Digest == "" || got.ID == byREST.ID {
			t.Errorf("%s makes campaign %q with digest %q, REST %q with %q", door, got.ID, got.Digest, byREST.ID, byREST.Digest)
		}
	}
}

// planned sends the wizard's form and returns the id of the new campaign.
func (d *daemon) planned(browser *http.Client, form url.Values) string {
	d.t.Helper()
	resp, err := browser.PostForm("http://"+d.http+"/campaigns", form)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	id := path.Base(resp.Request.URL.Path) // of the page to which it redirects
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || id == "campaigns" {
		d.t.Fatalf("POST /campaigns: %s\n%s", resp.Status, body)
	}
	return id
}

// chinese returns a page as a Chinese browser requests it.
func (d *daemon) chinese(browser *http.Client, address string) []byte {
	d.t.Helper()
	req, err := http.NewRequest("GET", "http://"+d.http+address, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Accept-Language", "zh-CN")
	resp, err := browser.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(page, []byte(`lang="zh`)) {
		d.t.Fatalf("%s: no Chinese page (%s, %v)", address, resp.Status, err)
	}
	return page
}

// formFields returns the fields that a browser would send for the form that contains the named
// field.
func formFields(t *testing.T, page []byte, having string) url.Values {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode || n.Data != "form" {
			continue
		}
		if fields := sentFields(n); fields.Has(having) {
			return fields
		}
	}
	t.Fatalf("no form with a field %q in the page:\n%s", having, page)
	return nil
}

func sentFields(form *html.Node) url.Values {
	fields := url.Values{}
	for n := range form.Descendants() {
		attr := map[string]string{}
		for _, a := range n.Attr {
			attr[a.Key] = a.Val
		}
		_, checked := attr["checked"]
		switch {
		case n.Type != html.ElementNode || attr["name"] == "":
		case n.Data == "select":
			fields.Add(attr["name"], selected(n))
		case n.Data == "textarea":
			text := ""
			for c := range n.ChildNodes() {
				text += c.Data
			}
			fields.Add(attr["name"], text)
		case n.Data == "input" && attr["type"] != "submit" &&
			(checked || attr["type"] != "checkbox" && attr["type"] != "radio"):
			fields.Add(attr["name"], attr["value"])
		}
	}
	return fields
}

// selected returns the value of the selected option, the first one by default.
func selected(list *html.Node) string {
	var first *string
	for n := range list.Descendants() {
		if n.Type != html.ElementNode || n.Data != "option" {
			continue
		}
		value, chosen := "", false
		for _, a := range n.Attr {
			switch a.Key {
			case "value":
				value = a.Val
			case "selected":
				chosen = true
			}
		}
		if chosen {
			return value
		}
		if first == nil {
			first = &value
		}
	}
	if first == nil {
		return ""
	}
	return *first
}
