import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.cert.X509Certificate;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509ExtendedTrustManager;

/** Shows what is at each URL of its arguments; names are looked up in the file of property jdk.net.hosts.file. */
class Client {
    /** Trusts everybody: the hosts of the test have certificates that they have signed themselves. */
    static class Trusting extends X509ExtendedTrustManager {
        public void checkClientTrusted(X509Certificate[] chain, String type) {}
        public void checkServerTrusted(X509Certificate[] chain, String type) {}
        public void checkClientTrusted(X509Certificate[] chain, String type, java.net.Socket socket) {}
        public void checkServerTrusted(X509Certificate[] chain, String type, java.net.Socket socket) {}
        public void checkClientTrusted(X509Certificate[] chain, String type, javax.net.ssl.SSLEngine engine) {}
        public void checkServerTrusted(X509Certificate[] chain, String type, javax.net.ssl.SSLEngine engine) {}
        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }

    public static void main(String[] urls) throws Exception {
        var context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {new Trusting()}, null);
        var client = HttpClient.newBuilder().sslContext(context).version(HttpClient.Version.HTTP_1_1).build();
        for (var url : urls) {
            var request = HttpRequest.newBuilder(URI.create(url)).build();
            System.out.println(client.send(request, BodyHandlers.ofString()).body());
        }
    }
}
