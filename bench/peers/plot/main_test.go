package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const description = `{"title": "all of it", "panels": [
	{"title": "by size", "y": "times as fast", "log": true, "series": [
		{"name": "2 ranks", "points": [[8, 0.5], [4096, 2.5], [1048576, 1]]},
		{"name": "goal", "target": true, "points": [[8, 1.25], [1048576, 1.5]]}]},
	{"title": "singles", "y": "times as fast", "log": true, "labels": ["barrier, 2", "start, 64"], "series": [
		{"name": "weft", "points": [[0, 0.001], [1, 1000]]},
		{"name": "goal", "target": true, "points": [[0, 1.25], [1, 2]]}]},
	{"title": "shares", "y": "%", "series": [{"name": "MPICH", "points": [[65536, 0]]}]},
	{"title": "next row", "y": "%", "series": [{"name": "MPICH", "points": [[65536, 100]]}]}]}`

// TestDraw draws panels of all kinds, and checks that the picture is XML and contains the texts.
func TestDraw(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "in.json"), filepath.Join(t.TempDir(), "out.svg")
	if err := os.WriteFile(in, []byte(description), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(out, in); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for lines := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := lines.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		if data, ok := token.(xml.CharData); ok {
			texts = append(texts, string(data))
		}
	}
	all := strings.Join(texts, "\n")
	for _, want := range []string{"all of it", "by size", "singles", "shares", "next row", "2 ranks", "goal", "4K", "1M", "1/1024", "barrier, 2"} {
		if !strings.Contains(all, want) {
			t.Errorf("no text %q in the picture", want)
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "in.json"), filepath.Join(t.TempDir(), "out.svg")
	for text, want := range map[string]string{`{}`: "nothing to draw", `{`: "parse"} {
		if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(out, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
