import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** {@code Client.java URL...}: what Java's two clients get of each URL, a line each. */
public class Client {
    public static void main(String[] urls) {
        for (String url : urls) {
            tell("HttpClient", () -> HttpClient.newHttpClient()
                .send(HttpRequest.newBuilder(URI.create(url)).build(), BodyHandlers.ofString())
                .body());
            tell("HttpURLConnection", () -> {
                HttpURLConnection asked = (HttpURLConnection) URI.create(url).toURL().openConnection();
                boolean well = asked.getResponseCode() < 400;
                try (InputStream body = well ? asked.getInputStream() : asked.getErrorStream()) {
                    return new String(body.readAllBytes());
                }
            });
        }
    }

    interface Asking {
        String ask() throws Exception;
    }

    static void tell(String client, Asking asking) {
        String said;
        try {
            said = asking.ask();
        } catch (Exception error) {
            said = error.toString();
        }
        System.out.println(client + " " + said.trim());
    }
}
